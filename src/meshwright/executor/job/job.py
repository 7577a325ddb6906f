"""A job: a program, what it works on, and how it is written for the workers: JSON, text and tensors, never pickles."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.rank.handler import Handlers, ValueName
from meshwright.executor.rank.rank_list import ShapeOf
from meshwright.executor.routing.routing_record import check_recordable
from meshwright.executor.training.resuming import check_resumable, check_same_data
from meshwright.executor.training.training_job import TrainingConfig
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.lowering.transfer.stage_edge import edges_of
from meshwright.specs.error import ExecutionError
from meshwright.specs.record import record
from meshwright.specs.slot import TRUST

SCHEMA = 1
LoadHandlers = Callable[[str], Handlers]  # of an owner of a vocabulary
BESIDE = ("program", "initial_values")  # fields with files of their own
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class Job:
    """What ranks are told. All axes of the program are materialised: its lists are the ranks.

    ``training`` or, for other programs, ``initial_values`` (for each rank), ``keep`` (value kinds returned as they are
    after the last iteration), ``shapes`` (of values of a kind that are exchanged; others carry their shape with them) and
    ``options`` (for handlers).
    ``checkpoints``: what a training job keeps, and where it resumes. ``counts_flops``: ranks count what they compute, which
    makes them slower. ``profile_folder``: where they write traces of torch.profiler, of some more iterations; empty: nowhere.
    ``routing_steps``: of how many steps, the last ones, they record which experts tokens went to; of those whose number
    ``routing_every`` divides.
    """

    program: Program
    iterations: int
    training: TrainingConfig | None = None
    initial_values: Sequence[Mapping[ValueName, Tensor]] = ()
    keep: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    device: str = "cpu"
    num_threads: int = 1
    measures_memory: bool = False
    counts_flops: bool = False
    profile_folder: str = ""
    routing_steps: int = 0
    routing_every: int = 1
    checkpoints: CheckpointConfig | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ExecutionError(f"dtype {self.dtype!r} cannot be executed", allowed=", ".join(DTYPES))
        if self.iterations < 1:
            raise ExecutionError(f"{self.iterations} iterations were asked for", allowed="1 or more")
        if self.initial_values and len(self.initial_values) != self.num_ranks:
            raise ExecutionError(
                f"initial values for {len(self.initial_values)} ranks, the program has {self.num_ranks}"
            )
        for owner in self.program.vocabulary.owners:
            TRUST.check(owner)
        if any(not axis.materialised for axis in self.program.axes):
            raise ExecutionError("the program has collapsed axes", next="expand them (Job.of does)")
        if self.training is not None:
            self._check_training(self.training)
        if self.routing_steps:
            self._check_routing()
        if self.checkpoints is not None:
            if self.training is None:
                raise ExecutionError("checkpoints of a job without training", allowed="a training job")
            check_resumable(self.checkpoints, self.training)

    def _check_routing(self) -> None:
        """Is there routing, of one program, and does it fit into a trace?"""
        training = self.training
        if training is None or training.groups is not None:
            raise ExecutionError(
                "routing of a job without training, or of groups that change by step",
                allowed="a training by its plan",
            )
        replicas = math.prod(axis.size for axis in self.program.axes if axis.name in training.replica_axes)
        num_tokens = sum(each.tokens for each in self.program.tables.microbatches) * replicas
        check_recordable(training.model, num_tokens, self.routing_steps, self.routing_every)
        first, every = training.first_step, self.routing_every
        if -first % every >= self.iterations:
            raise ExecutionError(
                f"routing of every {every}th step, of steps {first} to {first + self.iterations - 1}",
                allowed=f"a number that divides one of them, up to {self.iterations} for any",
                next="record more often: --routing-every",
            )

    def _check_training(self, training: TrainingConfig) -> None:
        """Do stages and microbatches of program and training agree?"""
        training.sample_counts(self.program)
        given, needed = training.num_program_stages, self.program.tables.num_stages
        if given != needed:
            raise ExecutionError(f"layers are given for {given} stages, the program has {needed}")
        names = {self.program.tables.effects[e].name for e in set(self.program.columns.effect.tolist())}
        if training.source.modules and names & {"I", "S"}:
            raise ExecutionError(
                f"the modules of {training.source.modules} have torch's own backward, and the program needs another one",
                allowed="a schedule without split backward, and every table on one stage",
            )
        if training.optimizer.clip_norm is not None and "STEP" in names and "NORM" not in names:
            raise ExecutionError(
                f"the optimizer clips at norm {training.optimizer.clip_norm}, and no instruction sums the norm of all ranks",
                allowed="OptimizerConfig(clip_norm=None)",
                next="or build the program with ClipGradients() behind OptimizerStep()",
            )
        if (training.correction_rate > 0) != ("COUNT_TOKENS" in names):
            raise ExecutionError(
                f"routers are corrected at rate {training.correction_rate}, and the program "
                f"{'counts' if 'COUNT_TOKENS' in names else 'does not count'} the tokens of experts",
                allowed="a rate above 0 where it counts them, else 0",
                next="build the program with CorrectRouters() behind OptimizerStep()",
            )
        wanted, found = training.stage_edges(), edges_of(self.program)
        if wanted != found:
            raise ExecutionError(
                f"the program has the edges {[tuple(edge) for edge in found]} beside its paths, the training needs "
                f"{[tuple(edge) for edge in wanted]}",
                next="build the program with ConnectStages(training.stage_edges())",
            )

    @staticmethod
    def of(program: Program, iterations: int, **fields: Any) -> Job:
        """A job on a program with all its axes expanded."""
        return Job(of_ranks(program), iterations, **fields)

    @property
    def num_ranks(self) -> int:
        """Processes that the job needs."""
        return self.program.num_lists

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of parameters and exchanged values."""
        return DTYPES[self.dtype]

    @property
    def backend(self) -> str:
        """gloo on CPU, NCCL on CUDA."""
        return "nccl" if self.device.startswith("cuda") else "gloo"

    def shape_of(self) -> ShapeOf:
        """Shapes of exchanged values that are known before the run."""
        if self.training is not None:
            training, counts = self.training, self.training.sample_counts(self.program)
            return lambda name: training.shape_of(counts, name, self.torch_dtype)
        return lambda name: self.shapes.get(name.kind)

    def write(self, folder: Path, warns: bool = True) -> None:
        """Write it for the workers. ``warns``: of what the user may not have meant; one process of a job does."""
        training = None if self.training is None else self.training.prepared()
        if self.checkpoints is not None and self.training is not None and training is not None:
            check_same_data(self.checkpoints, training, self.training.source.name, warns)
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in BESIDE}
        told["training"] = None if training is None else training.to_dict()
        told["checkpoints"] = None if self.checkpoints is None else self.checkpoints.to_dict()
        (folder / "job.json").write_text(json.dumps({"schema": SCHEMA, **told}, default=os.fspath))
        (folder / "program.txt").write_text(to_text(self.program))
        for rank, values in enumerate(self.initial_values):
            torch.save({name.text: value for name, value in values.items()}, folder / f"initial-{rank}.pt")

    @staticmethod
    def read(folder: Path, rank: int) -> Job:
        """Read it in the worker of a rank; of the initial values only those of this rank."""
        told = json.loads((folder / "job.json").read_text())
        if told.pop("schema") > SCHEMA:
            raise ExecutionError("the job was written by a newer meshwright", next="upgrade meshwright")
        training = told.pop("training")
        read = None if training is None else TrainingConfig.from_dict(training)
        program = from_text((folder / "program.txt").read_text())
        initial: list[Mapping[ValueName, Tensor]] = [{} for _ in range(program.num_lists)]
        path = folder / f"initial-{rank}.pt"
        if path.exists():
            loaded = torch.load(path, weights_only=True)
            initial[rank] = {ValueName.parse(text): value for text, value in loaded.items()}
        return record(
            Job, told, "job.json", ExecutionError, program=program, initial_values=initial, training=read
        )


def of_ranks(program: Program) -> Program:
    """The program with a list for every rank: all its axes expanded."""
    for axis in program.axes:
        program = program.expand(axis.name)
    return program
