"""Every fast path of `replay` equals the reference interpreter, on random programs and on both hosts."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.covering import examples
from tests.ir.random_program import random_costs, random_general, random_pipeline

from meshwright.ir.kernel import kernel
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Pattern, ValueKind
from meshwright.ir.timing.reference import interpret
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import DeadlockError

ITERATIONS = 3
X = ValueKind("x", index="none", microbatch=False)


def agree(program: Program, seed: int, iterations: int = ITERATIONS) -> int:
    """Compare both on both hosts; returns on how many hosts the program ran."""
    ran = 0
    seconds, latency_s = random_costs(Random(seed), program)
    for host in HOSTS:
        try:
            expected = interpret(program, seconds, latency_s, iterations, host)
        except DeadlockError:
            with pytest.raises(DeadlockError):
                replay(wire(program), seconds, latency_s, iterations=iterations, host=host)
            continue
        got = replay(wire(program), seconds, latency_s, iterations=iterations, host=host)
        for name, one, other in zip(("posted", "start", "end"), expected, got, strict=True):
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-9, err_msg=f"{name}, seed {seed}, {host}")
        ran += 1
    return ran


@settings(max_examples=examples(400))
@given(st.integers(0, 10**9))
def test_random_pipelines_replay_as_the_reference(seed: int) -> None:
    program = random_pipeline(Random(seed))
    if program.num_rows <= 150:
        assert agree(program, seed) == len(HOSTS), "a pipeline from a legal order never deadlocks"


@settings(max_examples=examples(600))
@given(st.integers(0, 10**9))
def test_random_general_programs_replay_as_the_reference(seed: int) -> None:
    agree(random_general(Random(seed)), seed)


def test_most_random_programs_run() -> None:
    """The comparison above would be empty if most random programs deadlocked."""
    ran = sum(agree(random_general(Random(seed)), seed, 1) == len(HOSTS) for seed in range(60))
    assert ran >= 50


def test_compiled_path_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SMALL_ROWS", 0)
    for seed in range(60):
        program = random_general(Random(seed)) if seed % 2 else random_pipeline(Random(seed), 3, 4)
        agree(program, seed)


def test_compiled_and_plain_dependencies_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        program = random_general(Random(seed)) if seed % 2 else random_pipeline(Random(seed))
        monkeypatch.setattr(kernel, "SMALL_ROWS", 1 << 30)
        plain = wire(program)
        monkeypatch.setattr(kernel, "SMALL_ROWS", 0)
        fast = wire(program)
        for name in (
            "ptr",
            "row",
            "lag",
            "version",
            "write_ptr",
            "code",
            "root",
            "resident_ptr",
            "resident_code",
        ):
            np.testing.assert_array_equal(getattr(plain.deps, name), getattr(fast.deps, name), err_msg=name)
        np.testing.assert_array_equal(plain.next_end, fast.next_end)


def test_costs_by_class_are_costs_by_row() -> None:
    for seed in range(20):
        program = random_pipeline(Random(seed))
        rng = np.random.default_rng(seed)
        classes = rng.integers(0, 4, program.num_rows).astype(np.int32)
        seconds, latency_s = rng.random(4), rng.random(4)
        wiring = wire(program)
        by_class = replay(wiring, seconds, latency_s, classes, iterations=2)
        by_row = replay(wiring, seconds[classes], latency_s[classes], iterations=2)
        np.testing.assert_array_equal(by_class[2], by_row[2])


def test_order_of_replay_is_a_possible_order() -> None:
    """What a row waits for stands before it in the order, and ends of one exchange stand together."""
    for seed in range(40):
        program = random_pipeline(Random(seed))
        wiring = wire(program)
        order = np.zeros(program.num_rows, dtype=np.int32)
        seconds, latency_s = random_costs(Random(seed), program)
        replay(wiring, seconds, latency_s, order=order)
        place = np.argsort(order)
        assert sorted(order.tolist()) == list(range(program.num_rows))
        reader = np.repeat(np.arange(program.num_rows), np.diff(wiring.deps.ptr))
        own = wiring.deps.lag == 0
        assert (place[wiring.deps.row[own]] < place[reader[own]]).all()


def two_devices(batched: bool, slots: int = 0) -> Program:
    """Both devices give their x to the other on one stream: a SEND before a RECEIVE at both ends."""
    builder = ProgramBuilder(
        [Axis("a", 2)], value_kinds=(X, ValueKind("y", index="none", microbatch=False, ring=slots))
    )
    x, y = Pattern("x", index="none"), Pattern("y", index="none")
    for device in (0, 1):
        builder.add(device, Effect(Kind.COMPUTE, "make", (), (x,)))
        batch = 1 if batched else 0
        builder.add(
            device,
            Effect(Kind.SEND, "GIVE", (x,)),
            stream="wire",
            exchange=Exchange(("a",), None, 1),
            batch=batch,
        )
        taken = Effect(Kind.RECEIVE, "TAKE", (), (y,), moves=x)
        builder.add(device, taken, stream="wire", exchange=Exchange(("a",), None, 1), batch=batch)
        builder.add(device, Effect(Kind.COMPUTE, "use", (y,)))
    return builder.build()


@pytest.mark.parametrize("host", HOSTS)
def test_sends_before_receives_on_one_stream_need_a_batch(host: str) -> None:
    with pytest.raises(DeadlockError) as refused:
        replay(wire(two_devices(False)), np.ones(8), np.zeros(8), host=host)
    assert "<-- here" in str(refused.value)
    _, _, end = replay(wire(two_devices(True)), np.ones(8), np.zeros(8), host=host)
    assert end.max() == 3.0


def test_an_exchange_takes_the_cost_of_its_slower_end() -> None:
    program = two_devices(True)
    seconds, latency_s = np.zeros(8), np.zeros(8)
    seconds[1], seconds[6], latency_s[6] = 2.0, 5.0, 0.25  # SEND of device 0, RECEIVE of device 1
    _, start, end = replay(wire(program), seconds, latency_s)
    assert start[0, [1, 6]].tolist() == [0.0, 0.0] and end[0, [1, 6]].tolist() == [5.25, 5.25]


def test_nothing_runs_in_no_program() -> None:
    empty = ProgramBuilder([Axis("a", 2)]).build()
    assert replay(wire(empty), np.zeros(0), np.zeros(0), iterations=2)[0].shape == (2, 0)
