"""Timing whole passes of real stages: a small pipeline stage runs steps of several microbatches, pass by pass.

What a pass takes beyond its operators (caches that are cold, memory that is new, autograd) shows only here.
Shapes: B sequences, S tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshwright.executor.meter.compute_clock import compute_seconds
from meshwright.executor.models.decoder import DecoderStage, build_stage
from meshwright.executor.ops.optimizer_step import Optimizer, OptimizerConfig
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering
from meshwright.executor.rank.slowed_compute import stretch
from meshwright.specs.model.model import ModelSpec

NUM_MICROBATCHES = 3  # alive at once between forward and backward, as in a pipeline
NUM_WARM_UP_STEPS = 1  # the first step meets new memory: its pages are handed out by the system one by one


class StageCase(NamedTuple):
    """One stage to time."""

    model: ModelSpec
    num_blocks: int
    has_embedding: bool
    has_head: bool
    num_sequences: int
    sequence_length: int


def _case(
    hidden: int, heads: int, blocks: int, ends: tuple[bool, bool], sequences: int, length: int
) -> StageCase:
    model = ModelSpec.decoder(blocks, hidden, heads, max_sequence_length=length, name="calibration")
    return StageCase(model, blocks, *ends, sequences, length)


def stage_cases() -> tuple[StageCase, ...]:
    """Stages small and large, wide and long, with and without the ends of a model."""
    return (
        _case(128, 4, 2, (True, True), 1, 128),
        _case(160, 5, 3, (False, False), 2, 192),
        _case(224, 7, 3, (True, False), 1, 256),
        _case(288, 6, 2, (False, True), 3, 128),
        _case(384, 6, 2, (False, False), 1, 256),
    )


@dataclass
class StageTimer:
    """A stage that runs the passes of a step by hand and keeps the seconds of each."""

    case: StageCase
    compute_factor: float = 1.0  # how many times as long computes are made to take
    times: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = self.case
        self.stage: DecoderStage = build_stage(
            case.model, range(case.num_blocks), case.has_embedding, case.has_head
        )
        self.step = Optimizer(list(self.stage.parameters()), OptimizerConfig())
        shape = (case.num_sequences, case.sequence_length)
        self.targets_BS = torch.randint(case.model.vocabulary_size, shape)
        self.hidden_BSE = torch.randn(*shape, case.model.hidden_size)

    def run_step(self, *, is_split: bool) -> None:
        """Forward of all microbatches, backward of all (whole, or I then W), optimizer; all of it timed."""
        self.step.zero()
        inputs = [self._input() for _ in range(NUM_MICROBATCHES)]
        queues = [WeightGradientQueue() for _ in inputs]
        if is_split:
            self._timed("R", partial(self._forward, inputs[0], None))
        outputs = [self._timed("F", partial(self._forward, x, q)) for x, q in zip(inputs, queues)]
        for i, queue in enumerate(queues):
            output, outputs[i] = outputs[i], None
            if is_split:
                self._timed("I", partial(self._input_half, output, queue))
                self._timed("W", queue.run)
            else:
                self._timed("B", partial(self._backward, output))
        self._timed("STEP", self.step.run)

    def _timed(self, name: str, run: Callable[[], Any]) -> Any:
        start = compute_seconds()
        result = run()
        stretch(self.compute_factor, start)
        self.times.setdefault(name, []).append(compute_seconds() - start)
        return result

    def _input(self) -> Tensor:
        if self.case.has_embedding:
            return self.targets_BS
        return self.hidden_BSE.clone().requires_grad_()

    def _forward(self, x: Tensor, queue: WeightGradientQueue | None) -> Tensor:
        """Output of the stage, or the loss where it has the head."""
        if queue is None:
            out: Tensor = self.stage(x)
        else:
            with registering(queue):
                out = self.stage(x)
        return token_cross_entropy(out, self.targets_BS, 1.0) if self.case.has_head else out

    def _backward(self, output: Tensor) -> None:
        output.backward(None if self.case.has_head else self.hidden_BSE)  # type: ignore[no-untyped-call]

    def _input_half(self, output: Tensor, queue: WeightGradientQueue) -> None:
        with deferring(queue):
            self._backward(output)


def warm(case: StageCase, compute_factor: float = 1.0) -> StageTimer:
    """A timer of `case` whose first, unsteady steps are over and forgotten."""
    timer = StageTimer(case, compute_factor)
    for _ in range(NUM_WARM_UP_STEPS):
        timer.run_step(is_split=False)
        timer.run_step(is_split=True)
    timer.times.clear()
    return timer
