"""AskedProgram: a wired program with the questions that pricing it asks, each to be answered again for every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.cost import Cost
from meshwright.ir.table import Exchange, Kind, Work
from meshwright.ir.timing.wiring import Wiring
from meshwright.lowering.place import Placement
from meshwright.simulator.pricing import price
from meshwright.stage.chain.chain import ChainStep


class Question(NamedTuple):
    """What one class of rows costs: the work of a number, or an exchange of so many bytes; neither: nothing."""

    work: int = -1
    device: Any = None
    exchange: Exchange | None = None
    num_bytes: float = 0.0
    ends: tuple[int, ...] = ()

    def answered(self, costs: Any, works: Sequence[Work], share: float) -> Cost:
        """By a cost and communication model, for works and a share of the bytes."""
        if self.exchange is not None:
            return costs.exchange_cost(self.exchange, self.num_bytes * share, self.ends)  # type: ignore[no-any-return]
        return costs.cost(works[self.work], self.device) if self.work >= 0 else Cost()

    def in_groups(self, number: int) -> Question:
        """Of an exchange: what one of so many groups of neighbours asks, each of its part of the bytes."""
        return self._replace(ends=self.ends[: len(self.ends) // number], num_bytes=self.num_bytes / number)


@dataclass(frozen=True, eq=False)
class AskedProgram:
    """A program whose works say by their `share` which of `steps` they stand for; ``question_of_row[i]`` is the question of
    row i."""

    wiring: Wiring
    steps: tuple[Mapping[ChainStep, int], ...]
    questions: tuple[Question, ...]
    question_of_row: NDArray[Any]
    computes_of_lists: tuple[NDArray[np.bool_], ...]

    def in_groups(self, rows: NDArray[np.bool_], number: int) -> AskedProgram:
        """The same with the exchanges of some rows in so many groups."""
        classes, places = np.unique(self.question_of_row[rows], return_inverse=True)
        questions = (*self.questions, *(self.questions[each].in_groups(number) for each in classes))
        of_row = self.question_of_row.copy()
        of_row[rows] = len(self.questions) + places
        return replace(self, questions=questions, question_of_row=of_row)


def asked_of(
    wiring: Wiring, placement: Placement, steps: tuple[Mapping[ChainStep, int], ...]
) -> AskedProgram:
    """The questions that `price` asks of a program, once for every class of row."""
    listener = _Listener()
    prices = price(wiring, listener, listener, placement, has_demands=False)
    asked = {id(answer): question for answer, question in listener.heard}
    questions = tuple(asked.get(id(cost), Question()) for cost in prices.costs)
    program = wiring.program
    computes = program.kinds == Kind.COMPUTE
    lists = tuple(computes & (program.list_of_row == each) for each in range(program.num_lists))
    return AskedProgram(wiring, steps, questions, prices.cost_of_row, lists)


@dataclass
class _Listener:
    """A cost and communication model that answers nothing and keeps what it was asked."""

    heard: list[tuple[Cost, Question]] = field(default_factory=list)

    def cost(self, work: Work, device: Any = None) -> Cost:
        return self._heard(Question(round(work.share), device))

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        return self._heard(Question(exchange=exchange, num_bytes=num_bytes, ends=devices))

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[()]:
        return ()

    def _heard(self, question: Question) -> Cost:
        answer = Cost()
        self.heard.append((answer, question))
        return answer
