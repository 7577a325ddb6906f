"""StepLine: what a device of one stage runs in a step, kernel by kernel and message by message, one behind the other.

A step's program has a row for all kernels between two messages. Who cuts a batch into parts that run beside each other asks
for each kernel alone, and which of the device's resources it is bound by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.table import Kind, Work
from meshwright.serving.simulated.asked_program import Question
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import LOWERED_TOKENS, ForwardProgram
from meshwright.specs.operator import Operator
from meshwright.stage.chain.chain import ChainStep

COMPUTE, MEMORY, NETWORK = RESOURCES = ("compute", "memory", "network")
COMPUTE_BOUND = ("matmul", "grouped_matmul", "attention")  # operators; all others are bound by memory
EVERYTHING = BatchShape(1, 1, 1, 1, 1)  # has every kernel that a step may have


class LinePlace(NamedTuple):
    """One kernel or message of a line: its name, what it is bound by, and its number among those that cost the same."""

    name: str
    resource: str
    price: int


@dataclass(frozen=True, eq=False)
class StepLine:
    """One stage of a replica.

    Attributes:
        program: of the replica.
        places: in the order in which they run.
        steps: of the chain, each once, with what its kernels are called.
        messages: what is asked of them.
        arrival: of what the stage before sends; None: it has none before it.
    """

    program: ForwardProgram
    places: tuple[LinePlace, ...]
    steps: Mapping[ChainStep, tuple[str, ...]]
    messages: tuple[Question, ...]
    arrival: Question | None

    def seconds(self, batch: BatchShape) -> NDArray[np.float64]:
        """Of every place for a batch, alone on its device; 0 where the batch has no such kernel."""
        prices = [*self._kernels(batch), *(self._message(each, batch) for each in self.messages)]
        return np.array(prices)[self._price_of_place]

    def arrival_s(self, batch: BatchShape) -> float:
        """Until what the stage before sends is here."""
        return self._message(self.arrival, batch) if self.arrival else 0.0

    @cached_property
    def _price_of_place(self) -> NDArray[np.int64]:
        return np.array([place.price for place in self.places])

    def _kernels(self, batch: BatchShape) -> Iterator[float]:
        """Of every step's kernels, in order of their numbers."""
        program = self.program
        for step, names in self.steps.items():
            found = dict.fromkeys(names, 0.0)
            for operator in program.operators(step, batch):
                found[operator.label] += self._kernel_s(operator, batch)
            yield from found.values()

    def _kernel_s(self, operator: Operator, batch: BatchShape) -> float:
        tokens = batch.num_tokens
        work = Work(
            "F", tokens, (1, tokens), self.program.dtype, operator.total_flops, operator.total_bytes,
            operators=(operator,),
        )  # fmt: skip
        return float(self.program.costs.cost(work, self.program.cluster.devices[0]).seconds)

    def _message(self, question: Question, batch: BatchShape) -> float:
        cost = question.answered(self.program.costs, (), batch.num_tokens / LOWERED_TOKENS)
        return cost.seconds + cost.latency_s


def lines_of(program: ForwardProgram) -> tuple[StepLine, ...]:
    """Of every stage, the first one first."""
    wired = program.asked.wiring.program
    return tuple(_line(program, np.flatnonzero(wired.list_of_row == each)) for each in range(wired.num_lists))


def _line(program: ForwardProgram, rows: NDArray[np.int64]) -> StepLine:
    asked, wired = program.asked, program.asked.wiring.program
    kernels: dict[ChainStep, tuple[tuple[str, str], ...]] = {}
    messages: dict[Question, None] = {}
    found: list[tuple[ChainStep | Question, str, str]] = []
    arrival = None
    for row in rows:
        question = asked.questions[asked.question_of_row[row]]
        if wired.kinds[row] == Kind.COMPUTE:
            for step in program.steps_of_stages[wired.columns.stage[row]]:
                if step not in kernels:
                    kernels[step] = _kernels_of(program, step)
                found += [(step, name, resource) for name, resource in kernels[step]]
        elif wired.kinds[row] == Kind.RECEIVE:
            arrival = question
        elif wired.kinds[row] == Kind.COLLECTIVE:
            assert question.exchange is not None, "a collective is an exchange"
            messages[question] = None
            found.append((question, question.exchange.algorithm, NETWORK))
    numbers: dict[tuple[ChainStep | Question, str], int] = {}
    for step, own in kernels.items():
        numbers |= {(step, name): len(numbers) + i for i, (name, _) in enumerate(own)}
    for message in messages:
        numbers[message, message.exchange.algorithm] = len(numbers)  # type: ignore[union-attr]
    places = tuple(LinePlace(name, resource, numbers[what, name]) for what, name, resource in found)
    steps = {step: tuple(name for name, _ in own) for step, own in kernels.items()}
    return StepLine(program, places, steps, tuple(messages), arrival)


def _kernels_of(program: ForwardProgram, step: ChainStep) -> tuple[tuple[str, str], ...]:
    """Names of a step's kernels and what they are bound by, in order, each once."""
    operators = program.operators(step, EVERYTHING)
    resources = {each.label: COMPUTE if each.kind in COMPUTE_BOUND else MEMORY for each in operators}
    return tuple(resources.items())
