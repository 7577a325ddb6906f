"""SearchJobs: searches in a thread, whose progress can be asked for, and which can be given up; the one for plans."""

from __future__ import annotations

import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from meshwright import api
from meshwright.api.plans.like import PlansLike, plan_like
from meshwright.api.plans.plan_text import compared_lines, passed_over_lines, plan_row, unsaid_lines
from meshwright.planner.search.plans import Plans
from meshwright.prediction.predicted import Predicted
from meshwright.specs.error import MeshwrightError, SpecError
from meshwright.workbench.document.document import (
    Document,
    FrontierMark,
    FrontierSection,
    PlansSection,
    TableColumn,
    TableSection,
)
from meshwright.workbench.document.result import undominated
from meshwright.workbench.document.table import cell_text
from meshwright.workbench.server.session import Script, Session
from meshwright.workbench.server.state import AskedView, words_of

MOST_JOBS = 16  # that are remembered
MOST_WAITING = 2  # beside the one that runs
LIMIT_S = 60.0  # of one search; it ends with the best so far
SUFFIXES = {"megatron": ".sh", "torchtitan": ".toml", "deepspeed": ".json"}  # of scripts
TEXTS = ("", "plan")  # columns that stand to the left
Progress = Callable[[str, float], None]
Search = Callable[[Progress], Document]  # tells how far it is, and ends with what it found


class GivenUp(Exception):
    """Nobody wants the search any more."""


@dataclass
class SearchJob:
    """One search; `share` of it is done, `text` says what it does."""

    id: str
    search: Search
    state: Literal["waiting", "running", "done", "failed", "cancelled"] = "waiting"
    share: float = 0.0
    text: str = ""
    document: Document | None = None
    error: MeshwrightError | None = None
    is_given_up: bool = False

    def note(self, text: str, share: float) -> None:
        """Called by the search. Raises GivenUp."""
        if self.is_given_up:
            raise GivenUp
        self.text, self.share = text, share

    def run(self) -> None:
        """Search, and keep what was found or why nothing was."""
        if self.is_given_up:
            return
        self.state = "running"
        try:
            self.document = self.search(self.note)
            self.state, self.share = "done", 1.0
        except GivenUp:
            self.state = "cancelled"
        except MeshwrightError as error:
            self.state, self.error = "failed", error
        except Exception as error:  # a mistake of ours ends the job, not the server
            self.state = "failed"
            self.error = MeshwrightError(
                f"this is a mistake in meshwright, not yours: {type(error).__name__}: {error}"
            )


class SearchJobs:
    """All that a server has been asked for; the oldest are forgotten."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, SearchJob] = OrderedDict()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="search")

    def start(self, search: Search) -> SearchJob:
        """A search, begun when those before it are done. Raises SpecError where others wait already."""
        if sum(job.state == "waiting" for job in self._jobs.values()) >= MOST_WAITING:
            raise SpecError(
                "other searches wait already", allowed=f"{MOST_WAITING} that wait", next="cancel one of them"
            )
        job = SearchJob(secrets.token_urlsafe(12), search)
        self._jobs[job.id] = job
        while len(self._jobs) > MOST_JOBS:
            self.cancel(next(iter(self._jobs)))
            self._jobs.popitem(last=False)
        self._pool.submit(job.run)
        return job

    def find(self, id: str) -> SearchJob | None:
        """The job of that number."""
        return self._jobs.get(id)

    def cancel(self, id: str) -> SearchJob | None:
        """Give a search up; one that is done stays done."""
        job = self._jobs.get(id)
        if job is not None and job.state in ("waiting", "running"):
            job.is_given_up, job.state = True, "cancelled"
        return job

    def close(self) -> None:
        """Give all up."""
        for id in list(self._jobs):
            self.cancel(id)
        self._pool.shutdown(wait=False, cancel_futures=True)


def searched_plans(asked: AskedView, session: Session, progress: Progress) -> Document:
    """The fastest plans of a job; for one that a script says those that its program can run, with what changes in it. Of
    devices that were never measured, too, by their data sheet, as moves are priced: the notes tell it."""
    if asked.like is not None:
        return _searched_like(asked, asked.like, session, progress)
    found = api.plan(
        asked.model, asked.cluster, global_batch=asked.workload.global_batch, seq=asked.workload.sequence_length,
        time_limit_s=LIMIT_S, progress=progress, extrapolate=True,
    )  # fmt: skip
    return plans_document(found, asked, session)


def _searched_like(asked: AskedView, like: Script, session: Session, progress: Progress) -> Document:
    with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
        file = Path(folder) / f"pasted{SUFFIXES[like.form]}"
        file.write_text(like.text, encoding="utf-8")
        is_silent = like.form == "deepspeed"  # of the model and its sequences
        found = plan_like(
            file, like.form, model=asked.model if is_silent else None,
            seq=asked.workload.sequence_length if is_silent else None, cluster=asked.cluster, time_limit_s=LIMIT_S,
            progress=progress, extrapolate=True,
        )  # fmt: skip
    document = plans_document(found.found, asked, session, found.today)
    return replace(document, sections=[_changes(found, like), *document.sections])


def _changes(found: PlansLike, like: Script) -> TableSection:
    """From the script to the best plan, option by option."""
    rows = [
        {"option": each.name, "today": _value(each.before), "best": _value(each.after)}
        for each in found.changes
    ]
    columns = [
        TableColumn("option", "option", False),
        TableColumn("today", "today", False),
        TableColumn("best", "best plan", False),
    ]
    title = f"What changes, in the words of {like.form}"
    lines = [*compared_lines(found), *unsaid_lines(found)]
    note = " ".join(f"{each[:1].upper()}{each[1:]}." for each in lines)
    return TableSection("changes", title, columns, rows, note)


def _value(said: str | None) -> str:
    """Of an option that may not be there, or stand alone."""
    return "-" if said is None else said or "set"


def _passed_over(found: Plans) -> str:
    """What is faster than the first plan and does not fit for sure; a click opens it, too, where it stands in the table."""
    return " ".join(f"{line.partition(';')[0]}." for line in passed_over_lines(found))


def plans_document(
    found: Plans, asked: AskedView, session: Session, today: Predicted | None = None
) -> Document:
    """What a search found: different ideas as a table, all plans as points, each with the words that open it; `today`: the
    plan that a script says, which stands before them."""
    listed: list[tuple[int | str, Predicted]] = [] if today is None else [("today", today)]
    listed += found.ideas.items()
    rows: list[dict[str, Any]] = [plan_row(place, each) for place, each in listed]
    columns = [
        TableColumn(key, key or "#", key not in TEXTS)
        for key in dict.fromkeys(key for row in rows for key in row)
    ]
    texts = [{column.key: cell_text("", row.get(column.key)) for column in columns} for row in rows]
    ids = [words_of(each.plan, asked.words, session) for _, each in listed]
    steps, peaks = [each.step.value for each in found], [each.peak_bytes for each in found]
    best = undominated(list(zip(steps, peaks, strict=True)))
    marks = [
        FrontierMark(
            each.step.value,
            each.peak_bytes,
            each.description,
            words_of(each.plan, asked.words, session),
            place in best,
        )
        for place, each in enumerate(found)
    ]
    note = (
        ""
        if found.is_complete
        else "The search ended at its time limit: better plans may not have been simulated."
    )
    return Document(
        "plan",
        f"Plans for {asked.model.name} on {asked.cluster.name}",
        f"{found.num_candidates:,} candidates, {len(found):,} simulated",
        notes=[*([note] if note else []), *found.assumptions],
        sections=[
            PlansSection(
                "plans", "Ranked plans", columns, texts, ids, 0 if today is None else 1, _passed_over(found)
            ),
            FrontierSection("frontier", "Step against memory", marks, "step", "peak memory", "s", "B"),
        ],
    )
