"""Rows under torch.profiler: what a rank runs is annotated with what its program calls it, and the trace is written."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handler, Pending, Row
from meshwright.executor.rank.rank_list import RankList
from meshwright.ir.stored.row_annotation import RowAnnotation

PROFILED_ITERATIONS = 3  # behind one that warms the profiler up


def write_profile(path: Path, ranked: RankList, context: Context, run: Callable[[], None]) -> None:
    """Run some iterations under torch.profiler, each ended by all its rows, and write their trace. `run`: one iteration."""
    activities = [ProfilerActivity.CPU]
    if context.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    ranks = json.dumps({"rank": context.rank, "world_size": context.num_ranks})
    with (
        annotated_rows(ranked),
        profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=PROFILED_ITERATIONS, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
            experimental_config=_ExperimentalConfig(profile_all_threads=True),  # streams are threads
        ) as running,
    ):
        for iteration in range(1 + PROFILED_ITERATIONS):
            run()
            running.step()
            if iteration == 0:  # from here on it records; groups of our own are none of torch's default
                running.add_metadata_json("distributedInfo", ranks)


@contextlib.contextmanager
def annotated_rows(ranked: RankList) -> Iterator[None]:
    """Let handlers run inside annotations of their rows; outside of this they are what they were."""
    handlers = [step.handler for step in ranked.steps]
    for step in ranked.steps:
        step.handler = _annotated(step.handler, _said(step.row))
    try:
        yield
    finally:
        for step, handler in zip(ranked.steps, handlers, strict=True):
            step.handler = handler


def _said(row: Row) -> str:
    return RowAnnotation(row.text, row.number, row.name, row.kind).said


def _annotated(handler: Handler, said: str) -> Handler:
    """Posting and waiting have an annotation each: they may run on different threads."""

    def run(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any] | Pending:
        with record_function(said):
            found = handler(context, row, inputs)
        if type(found) is not Pending:
            return found

        def wait() -> Sequence[Any]:
            with record_function(said):
                return found.wait()

        return Pending(wait)

    return run
