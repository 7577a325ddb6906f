"""SearchJobs: searches in a thread, whose progress can be asked for, and which can be given up; the one for plans."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from meshwright import api
from meshwright.api.plans.plan_text import plan_row
from meshwright.planner.search.plans import Plans
from meshwright.specs.error import MeshwrightError, SpecError
from meshwright.workbench.document.document import (
    Document,
    FrontierMark,
    FrontierSection,
    PlansSection,
    TableColumn,
)
from meshwright.workbench.document.result import undominated
from meshwright.workbench.document.table import cell_text
from meshwright.workbench.server.session import Session
from meshwright.workbench.server.state import AskedView, words_of

MOST_JOBS = 16  # that are remembered
MOST_WAITING = 2  # beside the one that runs
LIMIT_S = 60.0  # of one search; it ends with the best so far
TEXTS = ("", "plan", "interval")  # columns that stand to the left
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
    """The fastest plans of a job."""
    found = api.plan(
        asked.model, asked.cluster, global_batch=asked.workload.global_batch, seq=asked.workload.sequence_length,
        time_limit_s=LIMIT_S, progress=progress,
    )  # fmt: skip
    return plans_document(found, asked, session)


def plans_document(found: Plans, asked: AskedView, session: Session) -> Document:
    """What a search found: different ideas as a table, all plans as points, each with the words that open it."""
    rows: list[dict[str, Any]] = [plan_row(place, each) for place, each in found.ideas.items()]
    columns = [
        TableColumn(key, key or "#", key not in TEXTS)
        for key in dict.fromkeys(key for row in rows for key in row)
    ]
    texts = [{column.key: cell_text("", row.get(column.key)) for column in columns} for row in rows]
    ids = [words_of(each.plan, asked.words, session) for each in found.ideas.values()]
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
            PlansSection("plans", "Ranked plans", columns, texts, ids, 0),
            FrontierSection("frontier", "Step against memory", marks, "step", "peak memory", "s", "B"),
        ],
    )
