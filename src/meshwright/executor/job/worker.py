"""One rank: `python -m meshwright.worker`. Commands come as JSON lines on stdin, reports leave on stdout.

It ends by itself when stdin is closed, so no worker outlives its parent.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from meshwright.executor.handlers.core_handler import CORE_HANDLERS
from meshwright.executor.job.changing.changing_program import ChangingInterpreter, ProgramReader
from meshwright.executor.job.evaluation import Evaluation
from meshwright.executor.job.job import Job, LoadHandlers
from meshwright.executor.meter.flop_meter import FlopMeter
from meshwright.executor.meter.memory_file import write_curves
from meshwright.executor.meter.rank_times import Pause, write_times
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import joined
from meshwright.executor.rank.interpreter import Interpreter
from meshwright.executor.rank.iteration_memory import Curves, iteration_curves
from meshwright.executor.rank.process_group import ProcessGroups, Team
from meshwright.executor.rank.rank_list import compile_rank
from meshwright.executor.rank.slowed_compute import slow_computes
from meshwright.executor.rank.stream.device_streams import is_asynchronous
from meshwright.executor.rank.stream.issued import RowError
from meshwright.executor.rank.stream.profiled_rows import write_profile
from meshwright.executor.rank.stream.row_times import clock
from meshwright.executor.rank.value_store import ValueStore
from meshwright.executor.rank.watchdog import Position, SharedPositions
from meshwright.executor.team.collective import start_gather, wait_all
from meshwright.executor.team.exchange_ends import teams_of
from meshwright.executor.team.freed_memory import keep_freed_memory
from meshwright.executor.team.rank_team import RankTeam, ranks_along
from meshwright.executor.team.slowed_link import SlowedLinks
from meshwright.executor.team.worker_pipe import WorkerPipe, error_text
from meshwright.executor.training.divergence import Divergence
from meshwright.executor.training.rank_training import TrainingState
from meshwright.ir.timing.wiring import wire
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.error import ExecutionError

if TYPE_CHECKING:
    from meshwright.executor.training.saved_job import TrainingCheckpoints


class RankReports(Protocol):
    """Where a rank reports to. ``teams``: process groups that it needs; ``clock_offset_s``: added to times it writes."""

    clock_offset_s: float

    @property
    def teams(self) -> Sequence[Team]:
        """Of this job."""

    def begin(self, groups: ProcessGroups) -> None:
        """All ranks have met."""

    def send(self, **fields: Any) -> None:
        """What happened."""

    def fail(self, error: BaseException) -> None:
        """This rank has failed, and its host thread stands in an exchange: another thread says so."""

    def end(self, folder: Path) -> None:
        """This rank has written its files; all ranks still are there."""


class Reports:
    """To the parent, by the pipe to it."""

    teams: Sequence[Team] = ()
    clock_offset_s = 0.0

    def __init__(self, pipe: WorkerPipe) -> None:
        self.send = pipe.send

    def begin(self, groups: ProcessGroups) -> None:
        """Nothing to prepare: the parent listens."""

    def end(self, folder: Path) -> None:
        """The parent sees the folder."""

    def fail(self, error: BaseException) -> None:
        """The parent ends all ranks when it hears it."""
        self.send(**failure(error))


def main(load_handlers: LoadHandlers) -> None:
    """Run jobs until stdin is closed; `load_handlers` finds those of an owner of a vocabulary."""
    pipe = WorkerPipe()
    reports = Reports(pipe)
    reports.send(ready=os.getpid())
    while True:
        _clear_away()
        command = pipe.commands.get()
        rank = int(command["rank"])
        logging.basicConfig(format=f"[rank {rank}] %(levelname)s %(name)s: %(message)s", force=True)
        try:
            run_rank(Path(command["folder"]), rank, reports, load_handlers)
        except BaseException as error:  # noqa: B036 - every failure is reported, then the job is over for all ranks
            reports.fail(error)
            return


def _clear_away() -> None:
    """Let go of what the job before has left in cycles: the threads of its process groups wake a hundred times a second each
    for as long as these live. What is left lives as long as the process and is not looked through again."""
    gc.collect()
    gc.freeze()


def failure(error: BaseException) -> dict[str, Any]:
    """What the user is told: the instruction, the error, and the traceback of one that is not ours."""
    fields: dict[str, Any] = {"time": time.monotonic()}
    if isinstance(error, RowError):
        fields |= {"row": error.step.row.text, "iteration": error.iteration}
        error = error.__cause__ or error
    return {"error": error_text(error), **fields}


def run_rank(
    folder: Path, rank: int, reports: RankReports, load_handlers: LoadHandlers, meeting: Any = None
) -> None:
    """Read a job, run all its iterations on this rank, and write what they gave. ``meeting``: where the ranks have met;
    None: they meet at a file beside the folder.
    """
    job = Job.read(folder, rank)
    torch.set_num_threads(job.num_threads)
    keep_freed_memory()
    handlers = joined(CORE_HANDLERS, *map(load_handlers, job.program.vocabulary.owners))
    wiring = wire(job.program)
    ranked = compile_rank(wiring, rank, job.shape_of(), handlers, job.keep, is_asynchronous(job.device))
    limits = json.loads((folder / "limits.json").read_text())
    slowing = Slowing.from_dict(limits["slowing"])
    slow_computes(ranked, slowing.factor(limits["places"][rank]))
    # The parent's watchdog decides, and says more: the backend's own timeout comes behind it.
    groups = ProcessGroups(
        rank, job.num_ranks, meeting or rendezvous_of(folder), job.backend, 2 * limits["timeout_s"] + 60
    )
    device = _device(job, limits["places"][rank])
    with groups:
        groups.make([*teams_of(wiring, job.backend), *_inner_teams(job), *reports.teams])
        reports.begin(groups)
        context = _context(job, rank, groups, device, SlowedLinks.of(slowing, rank, limits["places"]))
        context.report_failure = reports.fail
        store = ValueStore(ranked, _initial_values(job, context, rank))
        shared = SharedPositions(folder / "positions", job.num_ranks)
        position = Position(shared, rank)
        interpreter: Any = Interpreter(ranked, store, context, position)
        if limits.get("is_controlled", False):
            factor = slowing.factor(limits["places"][rank])
            reader = ProgramReader(job, rank, folder, handlers, factor)
            interpreter = ChangingInterpreter(interpreter, reader, context)
        evaluates = job.training is not None and job.training.source.evaluate_every > 0
        evaluation = Evaluation(job, rank, position, handlers) if evaluates else None
        checkpoints = _checkpoints(job, context, position)
        groups.barrier()
        meter = FlopMeter()
        with _counting(meter, interpreter) if job.counts_flops else contextlib.nullcontext():
            pauses = _iterate(job, context, interpreter, reports, evaluation, checkpoints)
            interpreter.drain()
        if checkpoints is not None:  # first of all: the disk of what is written below may be full
            checkpoints.end(interpreter.num_done)
        _write(context, interpreter, store, folder, rank, pauses, reports.clock_offset_s, meter)
        curves = _measure_memory(job, context, interpreter)
        _write_profile(job, context, interpreter)
        interpreter.close()
        write_curves(folder / f"memory-{rank}.npz", curves)
        reports.end(folder)
    shared.close()
    reports.send(done=interpreter.num_done)


def rendezvous_of(folder: Path) -> Path:
    """The file at which the ranks of a job meet. It lies beside the job's folder, not in it: torch's store opens its file
    once more when it is let go of, waits for minutes where that is gone, and then ends the process; and a process may let
    go of it after the parent has removed the folder."""
    return folder.with_name(f"{folder.name}.rendezvous")


INSIDE = "inside"  # what tells the groups apart by which a user's modules exchange


@contextlib.contextmanager
def _counting(meter: FlopMeter, interpreter: Interpreter) -> Iterator[None]:
    """Count what the rank computes, in all of its threads."""
    interpreter.watch(meter.in_thread)
    with meter.in_thread():
        yield
    interpreter.watch(contextlib.nullcontext)


def _device(job: Job, place: int) -> torch.device:
    """Of the process at `place`; a GPU is the current one from here on: what NCCL makes belongs to it. A starter may show
    every process its own GPU only."""
    if job.backend == "gloo":
        return torch.device(job.device)
    device = torch.device("cuda", place % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _context(job: Job, rank: int, groups: ProcessGroups, device: torch.device, links: SlowedLinks) -> Context:
    context = Context(
        rank, job.num_ranks, job.program.coordinates(rank), groups, job.torch_dtype, device, job.options,
        links=links,
    )  # fmt: skip
    if job.training is not None:
        inside = None
        if job.training.exchanges_inside:
            inside = groups.labelled(
                RankTeam.along(job.program, job.training.layout.tensor_axes, rank).ranks, INSIDE
            )
        context.training = TrainingState(job.training, job.program, rank, job.torch_dtype, device, inside)
        if job.routing_steps:
            context.training.record_routing(job.routing_steps, job.routing_every)
    return context


def _inner_teams(job: Job) -> list[Team]:
    """Who exchanges within a user's modules, which no row says."""
    if job.training is None or not job.training.exchanges_inside:
        return []
    return [(ranks, INSIDE) for ranks in ranks_along(job.program.axes, job.training.layout.tensor_axes)]


def _initial_values(job: Job, context: Context, rank: int) -> Mapping[Any, Any]:
    if context.training is not None:
        values: Mapping[Any, Any] = context.training.initial_values()
        return values
    return {name: value.to(context.device) for name, value in job.initial_values[rank].items()}


def _checkpoints(job: Job, context: Context, position: Position) -> TrainingCheckpoints | None:
    """Where the job keeps checkpoints, and after loading the one that it resumes from."""
    if job.checkpoints is None:
        return None
    from meshwright.executor.training.saved_job import TrainingCheckpoints

    checkpoints = TrainingCheckpoints(job.checkpoints, context.training, position.set_bytes)

    def gathered(team: RankTeam, part: Tensor) -> Tensor:
        """The members' parts; they gather the same behind every step, so they have a group."""
        if team.degree == 1:
            return part
        whole, works = start_gather(part, context.groups.among(team.ranks))
        wait_all(works)
        return whole

    checkpoints.load(gathered)
    return checkpoints


def _iterate(
    job: Job,
    context: Context,
    interpreter: Interpreter,
    reports: RankReports,
    evaluation: Evaluation | None,
    checkpoints: TrainingCheckpoints | None,
) -> list[Pause]:
    """All iterations, each reported; the parent may end it earlier, at the same iteration on all ranks.

    Returns when this rank did something else between them.
    """
    pauses = []
    divergence = Divergence(0 if job.training is None else job.training.first_step)
    for iteration in range(job.iterations):
        if not interpreter.position.may_begin(iteration):
            break
        divergence.see(iteration, _run_iteration(context, interpreter, iteration, reports))
        begin = clock()
        is_due = checkpoints is not None and checkpoints.is_due(iteration)
        is_evaluated = evaluation is not None and context.training.training.is_evaluated(
            iteration, job.iterations
        )
        if is_due or is_evaluated:
            interpreter.drain()
            share = evaluation.run(context, iteration) if evaluation is not None and is_evaluated else None
            if checkpoints is not None:
                _keep(checkpoints, iteration, share, is_due)
            if share is not None:
                reports.send(iteration=iteration, time=time.monotonic(), held_out_loss=share)
            pauses.append(Pause(iteration, begin, clock()))
    return pauses


def _keep(checkpoints: TrainingCheckpoints, iteration: int, share: float | None, is_due: bool) -> None:
    """Save what is due, or the best so far; ``share``: this rank's of the held-out loss, None: it was not found."""
    loss, is_best = (None, False) if share is None else checkpoints.evaluated(share)
    if is_due or is_best:
        checkpoints.save(iteration, loss, is_best)


def _run_iteration(
    context: Context, interpreter: Interpreter, iteration: int, reports: RankReports | None
) -> dict[str, float]:
    """One iteration; what `TrainingState.end_iteration` says of it."""
    context.iteration = iteration
    interpreter.prepare(iteration)
    if context.training is not None:
        context.training.begin_iteration(iteration)
    interpreter.run_iteration()
    sums = context.training.end_iteration() if context.training is not None else {}
    if reports is not None:
        spent = interpreter.spent()
        reports.send(
            iteration=iteration, time=time.monotonic(), computes=spent.computes, waits=spent.waits, **sums
        )
    return sums


def _write(
    context: Context, interpreter: Interpreter, store: ValueStore, folder: Path, rank: int, pauses: list[Pause],
    clock_offset_s: float, meter: FlopMeter,
) -> None:  # fmt: skip
    """Times, and the tensors that were asked for.

    Raises:
        ExecutionError: they cannot be written.
    """
    arrays = interpreter.arrays()
    write_times(folder / f"times-{rank}.npz", arrays, interpreter.num_done, pauses, clock_offset_s)
    kept = store.kept(interpreter.num_done - 1)
    tensors: dict[str, Any] = {
        "values": {name.text: v.detach().cpu().clone() for name, v in kept.items() if isinstance(v, Tensor)},
        "gradients": [],
        "parameters": [],
        "routing": [],
        "sent_bytes": dict(context.links.sent_bytes),
        "flops": dict(meter.flops),
        "allocated_bytes": torch.cuda.max_memory_allocated() if context.device.type == "cuda" else 0,
    }
    if context.training is not None:
        tensors["gradients"] = [[piece.to_row() for piece in found] for found in context.training.recorded]
        if context.training.training.records_parameters:
            tensors["parameters"] = [piece.to_row() for piece in context.training.parameters()]
        if context.training.routing is not None:
            tensors["routing"] = [list(choice) for choice in context.training.routing.choices()]
    try:
        torch.save(tensors, folder / f"tensors-{rank}.pt")
    except (OSError, RuntimeError) as error:  # torch's writer has no error of its own for a full disk
        raise ExecutionError(
            f"results of rank {rank} cannot be written to {folder.parent}: {error}",
            next="free space there, or name another folder in TMPDIR",
        ) from error


def _measure_memory(job: Job, context: Context, interpreter: Interpreter) -> Curves:
    """Of one more iteration, which is not part of the results; nothing where it is not asked for."""
    if not job.measures_memory:
        return {}

    def run() -> None:
        _run_iteration(context, interpreter, interpreter.num_done, None)
        interpreter.drain()

    return iteration_curves(context, job.program, interpreter.watch, run)


def _write_profile(job: Job, context: Context, interpreter: Interpreter) -> None:
    """A trace of torch.profiler of more iterations, which are not part of the results; none where it is not asked for."""
    if not job.profile_folder:
        return

    def run() -> None:
        _run_iteration(context, interpreter, interpreter.num_done, None)
        interpreter.drain()

    path = Path(job.profile_folder) / f"rank{context.rank}.pt.trace.json.gz"
    write_profile(path, interpreter.ranked, context, run)
