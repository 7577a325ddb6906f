"""The held-out loss on the ranks themselves: the forwards of the training's own program, on text that it never sees."""

from __future__ import annotations

from typing import Any

from meshwright.executor.job.job import Job
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers
from meshwright.executor.rank.interpreter import Interpreter
from meshwright.executor.rank.rank_list import compile_rank
from meshwright.executor.rank.stream.device_streams import is_asynchronous
from meshwright.executor.rank.value_store import ValueStore
from meshwright.executor.rank.watchdog import Position
from meshwright.ir.timing.wiring import wire
from meshwright.lowering.forward_only import ForwardOnly


class Evaluation:
    """The list of one rank of the program without its backwards. Parameters stay where the training has them.

    Exchanges use the process groups of the training's program: the forwards' are among its own.
    """

    def __init__(self, job: Job, rank: int, position: Position, handlers: Handlers) -> None:
        self._ranked = compile_rank(
            wire(ForwardOnly()(job.program)),
            rank,
            job.shape_of(),
            handlers,
            is_asynchronous=is_asynchronous(job.device),
        )
        self._position = position

    def run(self, context: Context, iteration: int) -> float:
        """This rank's share of the mean loss over the held-out windows, nats a token; the sum over ranks is the mean.

        The training's exchanges must have ended here: both use the same tags.

        Raises:
            RowError: a handler failed.
        """
        state: Any = context.training
        store = ValueStore(self._ranked, state.initial_values())
        interpreter = Interpreter(self._ranked, store, context, self._position.of_evaluation())
        num, total = int(state.training.source.num_evaluated), 0.0
        try:
            for batch in range(num):
                state.begin_iteration(iteration)
                state.data.evaluated = batch
                interpreter.run_iteration()
                total += 0.0 if state.loss is None else float(state.loss)
            interpreter.close()
        finally:
            state.data.evaluated = None
        self._position.end_evaluation()
        return total / num
