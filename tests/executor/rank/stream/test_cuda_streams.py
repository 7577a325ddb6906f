"""CUDA's streams by a fake of torch.cuda: who waits for what, what overlaps, what memory is held, and when the host waits."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.executor.rank.stream.fake_cuda import ERROR, FakeCuda
from tests.executor.relay_handlers import ONE
from torch import Tensor

from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.executor.rank.interpreter import Interpreter
from meshwright.executor.rank.rank_list import compile_rank
from meshwright.executor.rank.stream import device_streams
from meshwright.executor.rank.stream.cuda_streams import CudaStreams, tensors_of
from meshwright.executor.rank.stream.issued import RowError
from meshwright.executor.rank.value_store import ValueStore
from meshwright.executor.rank.watchdog import Position, SharedPositions, text_of_position
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Kind, Pattern, ValueKind
from meshwright.ir.timing.wiring import wire

MADE, LOADED, WORKED, USED = (Pattern(name, index="none") for name in ("made", "loaded", "worked", "used"))
KINDS = tuple(
    ValueKind(at.kind, index="none", microbatch=False, carried=at is LOADED)
    for at in (MADE, LOADED, WORKED, USED)
)
LASTS_MS = {"MAKE": 10.0, "FETCH": 30.0, "WORK": 5.0, "USE": 7.0, "PUT": 4.0}
Made = dict[str, weakref.ref[Tensor]]


def beside(age: int = 0, batch: int = 0) -> Program:
    """A fetch beside two computes; a third reads what it brought, `age` iterations ago; what that makes is put aside."""
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=KINDS, paths=((),), microbatches=ONE)
    builder.add(0, Effect(Kind.LOAD, "FETCH", (), (LOADED,)), stream="load", batch=batch)
    builder.add(0, Effect(Kind.COMPUTE, "MAKE", (), (MADE,)))
    builder.add(0, Effect(Kind.COMPUTE, "WORK", (MADE,), (WORKED,)))
    builder.add(0, Effect(Kind.COMPUTE, "USE", (LOADED._replace(age=age), WORKED), (USED,)))
    builder.add(0, Effect(Kind.STORE, "PUT", (USED,)), stream="store")
    return builder.build()


class Rank:
    """One rank on a fake of CUDA. ``made``: what its handlers have made, by name."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        patch: pytest.MonkeyPatch,
        device: str = "cuda:0",
        **handlers: Callable[..., Any],
    ) -> None:
        self.cuda, self.made = FakeCuda(), Made()
        patch.setattr(device_streams, "CudaStreams", functools.partial(CudaStreams, cuda=self.cuda))
        names = {effect.name for effect in program.tables.effects}
        table: Handlers = {name: handlers.get(name, self.run) for name in names}
        self.ranked = compile_rank(wire(program), 0, lambda name: None, table, is_asynchronous=True)
        self.program, self.shared = program, SharedPositions(folder / "positions", 1, is_new=True)
        context: Any = SimpleNamespace(device=device)
        store = ValueStore(self.ranked, {name: torch.zeros(1) for _, _, name in self.ranked.initial})
        self.interpreter = Interpreter(self.ranked, store, context, Position(self.shared, 0))

    def run(self, context: Any, row: Row, inputs: Sequence[Any]) -> Any:
        """Give the stream something to do; exchanges and the like come back as a Pending, in their stream's order."""
        self.cuda.log.append(("run", self.cuda.current_stream().name, row.name))
        self.cuda.work(LASTS_MS.get(row.name, 1.0))
        tensor = torch.ones(1)
        self.made[row.name] = weakref.ref(tensor)
        outputs = (tensor,) * len(row.writes)
        stream = self.cuda.current_stream()

        def wait() -> Sequence[Any]:
            assert self.cuda.current_stream() is stream
            self.cuda.log.append(("order", stream.name, row.name))
            return outputs

        return outputs if row.kind == Kind.COMPUTE else Pending(wait)

    def logged(self, what: str) -> list[tuple[str, str]]:
        """Who did it, and to whom."""
        return [(who, whom) for word, who, whom in self.cuda.log if word == what]


def test_streams_wait_for_events_and_the_host_for_none_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(beside(), tmp_path, monkeypatch)
    rank.cuda.log.clear()  # of the preparation, for which it has waited
    rank.interpreter.run_iteration()
    load, store = (rank.cuda.streams[number].name for number in (0, 2))
    assert rank.logged("run") == [
        (load, "FETCH"), ("default", "MAKE"), ("default", "WORK"), ("default", "USE"), (store, "PUT"),
    ]  # fmt: skip
    # all behind what ran before the iteration, then only what another stream makes
    assert [pair for pair in rank.logged("wait") if pair[1] != "default"] == [("default", load)]
    assert (
        rank.logged("wait").count((store, "default")) == 2
        and rank.logged("wait").count((load, "default")) == 1
    )
    first = next(place for place, (word, _, _) in enumerate(rank.cuda.log) if word == "host waits")
    assert all(word == "host waits" for word, _, _ in rank.cuda.log[first:])


def test_times_are_those_of_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(beside(), tmp_path, monkeypatch)
    for _ in range(2):
        rank.interpreter.run_iteration()
    arrays, spent = rank.interpreter.arrays(), rank.interpreter.spent()
    rank.interpreter.close()
    zero = arrays["start"][:, :1]
    starts, ends = (1e3 * (arrays[name] - zero) for name in ("start", "end"))
    for row_starts, row_ends in zip(starts, ends, strict=True):
        assert row_starts == pytest.approx([0, 0, 10, 30, 37], abs=1e-3)
        assert row_ends == pytest.approx([30, 10, 15, 37, 41], abs=1e-3)
    assert (arrays["posted"] == arrays["start"]).all()
    assert spent.computes == pytest.approx({"MAKE": 0.010, "WORK": 0.005, "USE": 0.007}, abs=1e-6)
    assert spent.waits == pytest.approx({"FETCH": 0.015}, abs=1e-6)


def test_an_aged_read_waits_for_the_event_of_its_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(beside(age=1), tmp_path, monkeypatch)
    for _ in range(2):
        rank.cuda.log.clear()
        rank.interpreter.run_iteration()
    times = rank.interpreter.times[-1]
    assert rank.ranked.steps[3].waits == ((0, 1),)
    assert ("default", rank.cuda.streams[0].name) in rank.logged("wait")
    assert times.end[3] - times.start[0] == pytest.approx(
        0.022, abs=1e-6
    )  # it does not wait for this one's fetch


def test_what_is_read_of_another_stream_is_held_until_the_reader_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[tuple[bool, bool]] = []

    def put(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
        alive.append((rank.made["MAKE"]() is not None, rank.made["FETCH"]() is not None))
        return ()

    rank = Rank(beside(), tmp_path, monkeypatch, PUT=put)
    rank.interpreter.run_iteration()
    assert alive == [(False, True)]  # the host has forgotten both; the device has not begun
    assert rank.made["FETCH"]() is None and rank.made["USE"]() is None


def test_the_allocator_is_told_who_computes_with_what_another_stream_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph may keep it for longer than its row, and lets it go before its backward has run."""
    told: list[tuple[Tensor, str]] = []
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: told.append((tensor, stream.name)))
    rank = Rank(beside(), tmp_path, monkeypatch, device="cpu")
    rank.interpreter.run_iteration()
    assert [name for _, name in told] == ["default"]
    assert told[0][0] is rank.made["FETCH"](), "not what computes made themselves"
    elsewhere = Rank(beside(), tmp_path, monkeypatch)
    elsewhere.interpreter.run_iteration()
    assert len(told) == 1, "memory of the host is not the allocator's"


def test_what_is_held_goes_when_the_device_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=KINDS, paths=((),), microbatches=ONE)
    builder.add(0, Effect(Kind.LOAD, "FETCH", (), (LOADED,)), stream="load")
    builder.add(0, Effect(Kind.COMPUTE, "TAKE", (LOADED._replace(age=0),)))
    for name in ("EARLY", "LATE"):
        builder.add(0, Effect(Kind.COMPUTE, name))
    builder.add(0, Effect(Kind.LOAD, "AGAIN", (), (LOADED,)), stream="load")
    alive: list[bool] = []

    def look(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
        alive.append(rank.made["FETCH"]() is not None)
        rank.cuda.now_ms = 1e6
        return ()

    rank = Rank(builder.build(), tmp_path, monkeypatch, EARLY=look, LATE=look)
    rank.interpreter.run_iteration()
    assert alive == [True, False]


def test_members_of_a_batch_are_posted_before_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=KINDS, paths=((),), microbatches=ONE)
    for name, at in (("FETCH", MADE), ("FETCH_MORE", WORKED)):
        builder.add(0, Effect(Kind.LOAD, name, (), (at,)), stream="load", batch=1)
    builder.add(0, Effect(Kind.COMPUTE, "USE", (MADE, WORKED), (USED,)))
    rank = Rank(builder.build(), tmp_path, monkeypatch)
    rank.interpreter.run_iteration()
    words = [(word, name) for word, _, name in rank.cuda.log if word in ("run", "order")]
    assert words == [
        ("run", "FETCH"), ("run", "FETCH_MORE"), ("order", "FETCH"), ("order", "FETCH_MORE"), ("run", "USE"),
    ]  # fmt: skip


def test_who_has_waited_waits_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream by itself; and never for a row of its own."""
    builder = ProgramBuilder((Axis("pp", 1),), value_kinds=KINDS, paths=((),), microbatches=ONE)
    builder.add(0, Effect(Kind.COMPUTE, "MAKE", (), (MADE,)))
    for name in ("PUT", "PUT_AGAIN"):
        builder.add(0, Effect(Kind.STORE, name, (MADE,)), stream="store")
    builder.add(0, Effect(Kind.LOAD, "FETCH", (MADE,), (LOADED,)), stream="load")
    builder.add(0, Effect(Kind.COMPUTE, "USE", (MADE, LOADED)))
    rank = Rank(builder.build(), tmp_path, monkeypatch)
    assert [step.waits for step in rank.ranked.steps] == [(), ((0, 0),), (), ((0, 0),), ((3, 0),)]
    assert not any(step.runs_inline for step in rank.ranked.steps)


def test_a_handler_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(beside(), tmp_path, monkeypatch, WORK=lambda *_: 1 // 0)
    with pytest.raises(RowError, match="0WORK0, iteration 0") as caught:
        rank.interpreter.run_iteration()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_kernel_that_fails_is_named_by_the_first_event_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(context: Any, row: Row, inputs: Sequence[Any]) -> Any:
        rank.cuda.is_broken = True
        return rank.run(context, row, inputs)

    rank = Rank(beside(), tmp_path, monkeypatch, WORK=work)
    with pytest.raises(RowError, match="0WORK0, iteration 0") as caught:
        rank.interpreter.run_iteration()
    assert str(caught.value.__cause__) == ERROR
    # so the watchdog names a row that never ends, too
    assert text_of_position(rank.program, rank.shared, 0).endswith("which waits for 0WORK0")


def test_tensors_are_found_in_what_a_row_reads() -> None:
    a, b, c, d = (torch.ones(n) for n in range(1, 5))
    group = SimpleNamespace(
        flat=a, sum=SimpleNamespace(parts={0: b}), name="stage", far=SimpleNamespace(own=[None])
    )
    group.far.own[0] = SimpleNamespace(own=SimpleNamespace(tensor=d))
    found = tensors_of((group, [c]))
    assert [one.numel() for one in found] == [1, 2, 3]
    assert tensors_of(None) == tensors_of("a text") == []


def test_only_cuda_runs_behind_its_host() -> None:
    assert device_streams.is_asynchronous("cuda:1") and not device_streams.is_asynchronous(
        torch.device("cpu")
    )
