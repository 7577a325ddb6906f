"""FollowedRun: the metrics of a training as they are written, read on from where the last reading ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from meshwright.specs.error import SpecError
from meshwright.workbench.document.document import Document, Follow
from meshwright.workbench.document.run import Row, metrics_of, run_document

METRICS = "*.jsonl"
ADDRESS, EVERY_S = "/api/run", 1.0
MOST_BYTES = 256 << 20  # of a file of metrics, in all


@dataclass
class FollowedRun:
    """A file of metrics, or a folder whose newest it is. A file that is shorter than it was, or another newest one, is read
    from its beginning."""

    path: Path
    file: Path | None = None
    rows: list[Row] = field(default_factory=list)
    num_bytes: int = 0  # that were read, up to the end of a line

    def document(self) -> Document:
        """What is known by now; a page that shows it asks again.

        Raises SpecError for a path that is not there, and for lines that are no steps.
        """
        self._read_on()
        waiting = Document("run", self.path.name, "no step is done yet")
        made = run_document(self.path, self.rows) if self.rows else waiting
        return replace(made, follow=Follow(ADDRESS, EVERY_S))

    def _read_on(self) -> None:
        file = newest_metrics(self.path) if self.path.is_dir() else self.path
        if file is None:
            self.file, self.rows, self.num_bytes = None, [], 0
            return
        try:
            size = file.stat().st_size
            if file != self.file or size < self.num_bytes:
                self.file, self.rows, self.num_bytes = file, [], 0
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
            raise SpecError(f"{file} cannot be read: {error.strerror}", next="check the path") from None


def newest_metrics(folder: Path) -> Path | None:
    """The file of metrics in a folder that was written last; None where there is none."""
    return max(folder.glob(METRICS), key=lambda each: each.stat().st_mtime, default=None)
