"""The interpreter: versions, ages, rings and batches on the in-order host; checked before anything starts where it can be."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from tests.executor import relay_handlers
from tests.executor.relay_handlers import ONE, first_values, relay

from meshwright.executor import run_program
from meshwright.executor.job.pool import Pool
from meshwright.executor.rank import exchange_handler
from meshwright.executor.rank.handler import Handler, Handlers, Pending, Row, ValueName, joined
from meshwright.executor.rank.interpreter import Interpreter
from meshwright.executor.rank.rank_list import RankList, compile_rank
from meshwright.executor.rank.stream.issued import RowError
from meshwright.executor.rank.value_store import ValueStore
from meshwright.executor.rank.watchdog import Position, SharedPositions, text_of_position
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Pattern, ValueKind
from meshwright.ir.timing.wiring import wire
from meshwright.ir.vocabulary import Vocabulary
from meshwright.specs.error import ExecutionError

ITEM = ValueKind("item", index="none", microbatch=False)
SUMMED = ValueKind("summed", index="none", microbatch=False, accumulates=True)


@pytest.mark.parametrize(("age", "total"), [(0, 1 + 2 + 3), (1, 100 + 1 + 2)])
def test_a_read_takes_the_version_of_its_age(age: int, total: float, gloo_pool: Pool) -> None:
    result = run_program(
        relay(age),
        initial_values=first_values(age),
        iterations=3,
        keep=("total",),
        pool=gloo_pool,
    )
    assert result.values[1] == {ValueName("total"): torch.tensor([float(total)])}
    assert result.trace is not None and result.trace.end_s.shape == (3, 4)


def test_who_has_the_handlers_may_be_a_file(gloo_pool: Pool) -> None:
    program = replace(relay(), vocabulary=Vocabulary(owners=(relay_handlers.__file__,)))
    result = run_program(program, initial_values=first_values(), keep=("total",), pool=gloo_pool)
    assert float(result.values[1][ValueName("total")]) == 1.0


def test_first_values_must_be_given() -> None:
    handlers = joined(exchange_handler.HANDLERS, relay_handlers.HANDLERS)
    ranked = compile_rank(wire(relay(1)), 1, lambda name: None, handlers)
    with pytest.raises(ExecutionError, match="number/0/0/0.*nothing gives them a first value"):
        ValueStore(ranked, first_values(0)[1])


@pytest.mark.slow
def test_a_rank_says_that_it_was_given_no_first_values(own_pool: Pool) -> None:
    with pytest.raises(ExecutionError, match="number/0/0/0.*nothing gives them a first value"):
        run_program(relay(1), initial_values=first_values(0), pool=own_pool)


def test_missing_handlers_are_named_before_anything_starts() -> None:
    builder = ProgramBuilder((Axis("pp", 1),), paths=((),), microbatches=ONE)
    builder.add(0, Effect(Kind.COMPUTE, "NOBODY_KNOWS"))
    builder.add(0, Effect(Kind.CALL, "NOR_THIS"), stream="host")
    with Pool(1) as pool:
        with pytest.raises(ExecutionError, match=r"NOBODY_KNOWS \(COMPUTE\), NOR_THIS \(CALL\)"):
            run_program(builder.build(), pool=pool)
        assert pool.process_ids == ()


def nothing(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Takes what there is, and makes nothing."""
    return ()


def test_two_handlers_of_one_name_are_refused() -> None:
    assert joined(relay_handlers.HANDLERS, {"MAKE": relay_handlers.make}) == relay_handlers.HANDLERS
    with pytest.raises(ExecutionError, match="wants to handle 'MAKE', which .*relay_handlers.make handles"):
        joined(relay_handlers.HANDLERS, {"MAKE": nothing})


def both_ways(batch: int, streams: Sequence[str]) -> Program:
    """Two ranks swap an item on the given streams for sends and receives, perhaps in one batch."""
    words = Vocabulary.of(ITEM, owner=__name__)
    builder = ProgramBuilder((Axis("pp", 2),), vocabulary=words, paths=((),), microbatches=ONE)
    make = Effect(Kind.COMPUTE, "MAKE", (), (Pattern("item", index="none"),))
    send = Effect(Kind.SEND, "SEND_ITEM", (Pattern("item", index="none"),))
    receive = Effect(
        Kind.RECEIVE,
        "RECV_ITEM",
        (),
        (Pattern("item", index="none", part_offset=1),),
        Pattern("item", index="none"),
    )
    use = Effect(Kind.COMPUTE, "USE", (Pattern("item", index="none", part_offset=1),))
    exchange = Exchange(("pp",), None, 1)
    for rank in range(2):
        builder.add(rank, make)
        builder.add(rank, send, stream=streams[0], exchange=exchange, batch=batch)
        builder.add(rank, receive, stream=streams[1], exchange=exchange, batch=batch)
        builder.add(rank, use)
    return builder.build()


def use(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Looks at what came."""
    assert inputs[0].tolist() == [1.0] * (context.iteration + 1)
    return ()


HANDLERS: Handlers = {"MAKE": relay_handlers.make, "USE": use}


@pytest.mark.parametrize(("batch", "streams"), [(0, ("send/pp+1", "receive/pp-1")), (1, ("ring", "ring"))])
def test_exchanges_of_a_batch_are_posted_together(
    batch: int, streams: Sequence[str], gloo_pool: Pool
) -> None:
    program = both_ways(batch, streams)
    result = run_program(program, iterations=2, pool=gloo_pool)
    assert result.trace is not None and (result.trace.end_s > 0).all()


class FakePlace:
    """A context without processes."""

    def __init__(self, report_failure: Callable[[BaseException], None] = lambda error: None) -> None:
        self.device, self.iteration, self.alive = torch.device("cpu"), 0, 0
        self.report_failure = report_failure


def alone(
    program: Program,
    tmp_path: Path,
    report_failure: Callable[[BaseException], None] = lambda error: None,
    **handlers: Handler,
) -> tuple[Interpreter, RankList]:
    """An interpreter of a program of one rank, in this process."""
    ranked = compile_rank(wire(program), 0, lambda name: None, joined(exchange_handler.HANDLERS, handlers))
    position = Position(SharedPositions(tmp_path / "positions", 1, is_new=True), 0)
    return Interpreter(ranked, ValueStore(ranked, {}), FakePlace(report_failure), position), ranked


def test_a_value_dies_with_its_last_reader(tmp_path: Path) -> None:
    item = Pattern("item", index="none")
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=(ITEM,), paths=((),), microbatches=ONE)
    builder.add(0, Effect(Kind.COMPUTE, "PRODUCE", (), (item,)))
    builder.add(0, Effect(Kind.COPY, "COPY_ASIDE", (item,), (item._replace(part_offset=1),)), stream="load")
    builder.add(0, Effect(Kind.COMPUTE, "CONSUME", (item,)))
    builder.add(0, Effect(Kind.COMPUTE, "CONSUME_COPY", (item._replace(part_offset=1),)))
    builder.add(0, Effect(Kind.COMPUTE, "LOOK"))
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def produce(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
        tensor = torch.ones(3)
        made.append(weakref.ref(tensor))
        return (tensor,)

    def look(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
        alive.append(made[-1]() is not None)
        return ()

    gc.disable()  # only references may keep it alive, no collection may help
    try:
        interpreter, ranked = alone(
            builder.build(), tmp_path, PRODUCE=produce, CONSUME=nothing, CONSUME_COPY=nothing, LOOK=look
        )
        interpreter.run_iteration()
        interpreter.run_iteration()
        interpreter.close()
    finally:
        gc.enable()
    assert alive == [False, False]
    assert ranked.num_lines == 1 and ranked.num_versions == 2


def test_contributions_are_added_in_list_order(tmp_path: Path) -> None:
    summed = Pattern("summed", index="none")
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=(SUMMED,), paths=((),), microbatches=ONE)
    for part in range(3):
        builder.add(0, Effect(Kind.COMPUTE, "GIVE", (), (summed,)), microbatch=0, part=part)
    seen: list[float] = []
    builder.add(0, Effect(Kind.COMPUTE, "SEE", (summed,)))
    interpreter, _ = alone(
        builder.build(),
        tmp_path,
        GIVE=lambda context, row, inputs: (torch.tensor([10.0**row.part]),),
        SEE=lambda context, row, inputs: seen.append(float(inputs[0])) or (),
    )
    interpreter.run_iteration()
    interpreter.run_iteration()
    interpreter.close()
    assert seen == [111.0, 111.0]


def test_a_stream_that_fails_wakes_the_host(tmp_path: Path) -> None:
    item = Pattern("item", index="none")
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=(ITEM,), paths=((),), microbatches=ONE)
    builder.add(0, Effect(Kind.LOAD, "LOAD_BROKEN", (), (item,)), stream="load")
    builder.add(0, Effect(Kind.COMPUTE, "USE_IT", (item,)))
    interpreter, _ = alone(builder.build(), tmp_path, USE_IT=nothing)
    with pytest.raises(RowError, match="LOAD_BROKEN") as caught:
        interpreter.run_iteration()
    assert isinstance(caught.value.__cause__, ExecutionError)


def test_outputs_are_counted(tmp_path: Path) -> None:
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=(ITEM,), paths=((),), microbatches=ONE)
    builder.add(0, Effect(Kind.COMPUTE, "FORGETS", (), (Pattern("item", index="none"),)))
    interpreter, _ = alone(builder.build(), tmp_path, FORGETS=nothing)
    with pytest.raises(RowError) as caught:
        interpreter.run_iteration()
    assert "returned 0 outputs, its effect has 1 writes" in str(caught.value.__cause__)


def awaited(num_aside: int, batch: int = 0) -> Program:
    """Computes each of which waits for the row before it, on a stream."""
    item = Pattern("item", index="none")
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=(ITEM,), paths=((),), microbatches=ONE)
    builder.add(0, Effect(Kind.COMPUTE, "FIRST", (), (item,)))
    for _ in range(num_aside):
        builder.add(0, Effect(Kind.CALL, "ASIDE", (item,), (item,)), stream="host", batch=batch)
        builder.add(0, Effect(Kind.COMPUTE, "USE_IT", (item,), (item,)))
    return builder.build()


def test_what_the_next_row_waits_for_runs_in_the_thread_of_the_host(tmp_path: Path) -> None:
    threads, seen = [], []

    def aside(context: Any, row: Row, inputs: Sequence[Any]) -> Pending:
        threads.append(threading.current_thread())
        return Pending(lambda: (inputs[0] + 1,))

    def use_it(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
        seen.append(inputs[0])
        return (inputs[0] * 10,)

    interpreter, ranked = alone(awaited(3), tmp_path, FIRST=lambda *_: (0,), ASIDE=aside, USE_IT=use_it)
    assert [step.runs_inline for step in ranked.steps] == [False, *[True, False] * 3]
    for _ in range(2):
        interpreter.run_iteration()
    arrays, spent = interpreter.arrays(), interpreter.spent()
    interpreter.close()
    assert set(threads) == {threading.current_thread()} and seen == [1, 11, 111] * 2
    in_order = np.stack([arrays["posted"], arrays["start"], arrays["end"]], axis=-1).reshape(-1)
    assert (np.diff(in_order) >= 0.0).all() and (arrays["posted"] > 0.0).all()
    lasted = (arrays["end"] - arrays["start"])[1, [1, 3, 5]].sum()
    assert spent.waits == pytest.approx({"ASIDE": lasted}, abs=2e-9)


def test_the_watchdog_finds_the_host_at_the_row_that_waits(tmp_path: Path) -> None:
    shared = SharedPositions(tmp_path / "positions", 1, is_new=True)
    program = awaited(1)
    at: list[str] = []

    def aside(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
        at.append(text_of_position(program, shared, 0))
        return (None,)

    table = {"FIRST": lambda *_: (None,), "ASIDE": aside, "USE_IT": lambda *_: (None,)}
    ranked = compile_rank(wire(program), 0, lambda name: None, table)
    interpreter = Interpreter(ranked, ValueStore(ranked, {}), FakePlace(), Position(shared, 0))
    interpreter.run_iteration()
    interpreter.close()
    shared.close()
    assert at == ["iteration 0, 0USE_IT0 (position 2), which waits for 0ASIDE0"]


def test_a_batch_is_handed_to_its_stream(tmp_path: Path) -> None:
    threads = []

    def aside(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
        threads.append(threading.current_thread().name)
        return (None,)

    interpreter, ranked = alone(
        awaited(1, batch=1), tmp_path, FIRST=lambda *_: (None,), ASIDE=aside, USE_IT=lambda *_: (None,)
    )
    interpreter.run_iteration()
    interpreter.close()
    assert not any(step.runs_inline for step in ranked.steps) and threads == ["host"]


def test_a_row_that_fails_in_the_host_names_itself(tmp_path: Path) -> None:
    def aside(context: Any, row: Row, inputs: Sequence[Any]) -> Pending:
        return Pending(lambda: (1 // 0,))

    interpreter, _ = alone(
        awaited(1), tmp_path, FIRST=lambda *_: (None,), ASIDE=aside, USE_IT=lambda *_: (None,)
    )
    with pytest.raises(RowError, match="0ASIDE0, iteration 0") as caught:
        interpreter.run_iteration()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_stream_that_fails_is_told_of_while_the_host_stands_in_an_exchange(tmp_path: Path) -> None:
    """Nothing wakes the host there: who ends the process must hear it from the stream's thread."""
    item = Pattern("item", index="none")
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=(ITEM,), paths=((),), microbatches=ONE)
    builder.add(0, Effect(Kind.LOAD, "LOAD_BROKEN", (), (item._replace(part_offset=1),)), stream="load")
    builder.add(0, Effect(Kind.CALL, "ASIDE", (), (item,)), stream="host")
    builder.add(0, Effect(Kind.COMPUTE, "USE_IT", (item,)))
    stands, told = threading.Event(), SimpleQueue[BaseException]()

    def load(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
        stands.wait(10.0)
        raise OSError("no such disk")

    def aside(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
        stands.set()
        failure = told.get(timeout=10.0)
        assert isinstance(failure, RowError) and "LOAD_BROKEN" in str(failure)
        return (None,)

    interpreter, _ = alone(builder.build(), tmp_path, told.put, LOAD_BROKEN=load, ASIDE=aside, USE_IT=nothing)
    with pytest.raises(RowError, match="LOAD_BROKEN"):
        interpreter.run_iteration()
    assert told.empty()
