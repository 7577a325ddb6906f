"""FollowedRun: the metrics of a training as they are written, read on from where the last reading ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from meshwright.api.trainings.held_file import is_held
from meshwright.specs.error import SpecError
from meshwright.workbench.document.document import Document, Follow
from meshwright.workbench.document.run import Row, metrics_of, run_document

METRICS = "*.jsonl"
ADDRESS, EVERY_S = "/api/run", 1.0
MOST_BYTES = 256 << 20  # of a file of metrics, in all
PATIENCE_S = 120.0  # after its last line, for a file that nobody was seen to hold: another program's, or one without locks
RunState = Literal["waiting", "running", "ended"]
ENDED = "The run has ended: this page asks no more."


@dataclass
class FollowedRun:
    """A file of metrics, or a folder whose newest it is. A file that is shorter than it was, or another newest one, is read
    from its beginning."""

    path: Path
    file: Path | None = None
    rows: list[Row] = field(default_factory=list)
    num_bytes: int = 0  # that were read, up to the end of a line
    was_held: bool = False  # by the training that writes it

    def document(self) -> Document:
        """What is known by now; a page that shows it asks again until the run has ended.

        Raises SpecError for a path that is not there, and for lines that are no steps.
        """
        state = self.state()  # before it is read: what is written after the last reading would be lost
        self._read_on()
        waiting = Document("run", self.path.name, "no step is done" + " yet" * (state != "ended"))
        made = run_document(self.path, self.rows) if self.rows else waiting
        if state == "ended":
            return replace(made, notes=[ENDED, *made.notes])
        return replace(made, follow=Follow(ADDRESS, EVERY_S))

    def state(self) -> RunState:
        """Whether more is to come. Raises SpecError for a path that is not there."""
        file = self._newest()
        if file is None:
            return "waiting"
        try:
            if is_held(file):
                self.was_held = True
                return "running"
            is_over = self.was_held or time.time() - file.stat().st_mtime > PATIENCE_S
        except OSError as error:
            raise _unread(file, error) from None
        return "ended" if is_over else "running"

    def _newest(self) -> Path | None:
        """The file that is read; another one than before begins anew."""
        file = newest_metrics(self.path) if self.path.is_dir() else self.path
        if file != self.file:
            self.file, self.rows, self.num_bytes, self.was_held = file, [], 0, False
        return file

    def _read_on(self) -> None:
        if (file := self.file) is None:
            return
        try:
            size = file.stat().st_size
            if size < self.num_bytes:
                self.rows, self.num_bytes = [], 0
            if size > MOST_BYTES:
                raise SpecError(f"{file} has {size:,} bytes", allowed=f"at most {MOST_BYTES:,}")
            with file.open("rb") as opened:
                opened.seek(self.num_bytes)
                found = opened.read(size - self.num_bytes)
            lines = found[: found.rfind(b"\n") + 1]  # the last line may be half written
            if lines.strip():
                self.rows += metrics_of(lines.decode("utf-8"), file.name, len(self.rows) + 1)
            self.num_bytes += len(lines)
        except UnicodeDecodeError:
            raise SpecError(f"{file} is not text", allowed="metrics, a line of JSON a step") from None
        except OSError as error:
            raise _unread(file, error) from None


def _unread(file: Path, error: OSError) -> SpecError:
    return SpecError(f"{file} cannot be read: {error.strerror}", next="check the path")


def newest_metrics(folder: Path) -> Path | None:
    """The file of metrics in a folder that was written last; None where there is none."""
    return max(folder.glob(METRICS), key=lambda each: each.stat().st_mtime, default=None)
