"""The event engine: equal to replay where nothing is shared, and the law of proportional slowing where something is."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.covering import examples
from tests.ir.random_program import random_program
from tests.simulator.program import SCHEDULES, training_step

from meshwright.costs.cost import Cost, Flow, SpeedCurve
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir import (
    Axis,
    Duty,
    Effect,
    Exchange,
    Kind,
    Pattern,
    Program,
    ProgramBuilder,
    ValueKind,
    Work,
    replay,
    wire,
)
from meshwright.ir.kernel import kernel
from meshwright.lowering import Recompute, place
from meshwright.simulator import Prices, price, run, run_events
from meshwright.simulator.event.reference import interpret_events
from meshwright.specs import Cluster
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import DeadlockError, SpecError

CURVES = (SpeedCurve(()), SpeedCurve(((0.5, 0.7),)), SpeedCurve(((0.2, 0.3), (0.35, 0.5), (0.8, 0.9))))
COSTS = FixedCosts.from_times(1.0, 1.1, 0.7, latency_s=0.25)


@pytest.mark.parametrize("host", ["asynchronous", "in_order"])
@pytest.mark.parametrize(("schedule", "v"), SCHEDULES)
@pytest.mark.parametrize("passes", [(), (Recompute(),)], ids=["plain", "recompute"])
def test_without_contention_it_is_replay(schedule: str, v: int, host: str, passes: tuple[Any, ...]) -> None:
    wiring = wire(training_step(schedule, 4, 8, v, dp=2, passes=passes).expand("dp"))
    prices = price(wiring, COSTS, COSTS, None)
    expected = replay(wiring, prices.seconds, prices.latency_s, prices.cost_of_row, iterations=3, host=host)
    for ours, theirs in zip(run_events(wiring, prices, iterations=3, host=host), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


@dataclass(frozen=True)
class Shares:
    """A compute takes its device; a message lasts ``message_s`` alone and takes ``share`` of both devices."""

    message_s: float
    share: float

    def cost(self, work: Work, device: Any = None) -> Cost:
        return Cost(1.0)

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        return Cost(self.message_s, compute_share=self.share)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Any, ...]:
        return ()


def overlapped() -> ProgramBuilder:
    """Device 0 sends x while it computes y; device 1 receives."""
    kinds = (ValueKind("x"), ValueKind("y"), ValueKind("z"))
    make, use = (Effect(Kind.COMPUTE, n, (), (Pattern(v),)) for n, v in (("MAKE", "x"), ("USE", "y")))
    builder = ProgramBuilder(
        [Axis("pp", 2)], value_kinds=kinds, duties=(Duty("MAKE", "some"), Duty("USE", "some"))
    )
    message = Exchange(("pp",), (0, 1))
    builder.add(0, make, work=Work("MAKE"))
    builder.add(0, Effect(Kind.SEND, "SEND_X", (Pattern("x"),)), exchange=message, stream="send/pp1")
    builder.add(0, use, work=Work("USE"))
    builder.add(
        1, Effect(Kind.RECEIVE, "RECV_X", (), (Pattern("x"),)), exchange=message, stream="receive/pp0"
    )
    return builder


def test_what_shares_a_device_slows_in_proportion() -> None:
    wiring = wire(overlapped().build())
    models = Shares(message_s=0.5, share=0.5)
    prices = price(wiring, models, models, None)
    engine, (_, start, end) = run(wiring, prices)
    # from t=1 both run at 1/1.5: the message needs 0.75, the compute has done 0.5 by then and needs 0.5 more alone
    assert engine == "event"
    np.testing.assert_allclose(start[0], [0.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(end[0], [1.0, 1.75, 2.25, 1.75])


def test_small_shares_need_no_events() -> None:
    wiring = wire(overlapped().build())
    models = Shares(message_s=0.5, share=0.0)
    engine, (_, _, end) = run(wiring, price(wiring, models, models, None))
    assert engine == "max-plus"
    np.testing.assert_allclose(end[0], [1.0, 1.5, 2.0, 1.5])


def test_a_circle_of_waits_is_a_deadlock() -> None:
    builder = ProgramBuilder([Axis("pp", 2)], value_kinds=(ValueKind("x"),), duties=(Duty("MAKE", "some"),))
    make = Effect(Kind.COMPUTE, "MAKE", (), (Pattern("x", part="row"),))
    send = Effect(Kind.SEND, "SEND_X", (Pattern("x", part="row"),))
    receive = Effect(Kind.RECEIVE, "RECV_X", (), (Pattern("x", part="row"),))
    for device in (0, 1):  # both send first, then receive, on one stream
        other = 1 - device
        builder.add(device, make, part=device, work=Work("MAKE"))
        builder.add(device, send, part=device, exchange=Exchange(("pp",), (device, other)), stream="one")
        builder.add(device, receive, part=other, exchange=Exchange(("pp",), (other, device)), stream="one")
    wiring = wire(builder.build())
    models = Shares(message_s=0.5, share=0.5)
    with pytest.raises(DeadlockError, match="never be posted"):
        run_events(wiring, price(wiring, models, models, None))


@dataclass(frozen=True)
class FullLinks(Shares):
    """Exchanges that need all of the links that they take."""

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        return Cost(self.message_s, compute_share=self.share, link_share=1.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(Flow(a, b, 1e15) for a, b in zip(devices, (*devices[1:], devices[0]), strict=True))


def test_a_group_occupies_its_links_once() -> None:
    program = training_step("1f1b", 1, 2, dp=2).expand("dp")
    wiring = wire(program)
    models = FullLinks(message_s=1.0, share=0.0)
    prices = price(wiring, models, models, place(program, Cluster("2xcpu")))
    assert any(share == 1.0 for demand in prices.demands for _, share in demand), (
        "the reduction fills its links"
    )
    _, (_, start, end) = run(wiring, prices)
    reductions = [i for i in range(program.num_rows) if program.row(i).name == "REDUCE_GRAD"]
    np.testing.assert_allclose(end[0][reductions] - start[0][reductions], 1.0)
    np.testing.assert_allclose(run_events(wiring, prices)[2], end)


def random_prices(rng: Random, program: Program) -> Prices:
    """Costs with ties or without, with and without latency, that want more of devices and of three links than there is."""
    num_classes, has_ties = rng.randint(1, 6), rng.random() < 0.5

    def seconds() -> float:
        return rng.choice((0.0, 1.0, 2.0)) if has_ties else rng.expovariate(1.0)

    costs = tuple(
        Cost(
            seconds(),
            rng.choice((0.0, 0.0, seconds())),
            compute_share=rng.choice((0.0, 1e-15, 0.3, 0.5, 1.0)),
            memory_share=rng.choice((0.0, 0.0, 0.6)),
            curve=rng.choice((None, None, *CURVES)),
        )
        for _ in range(num_classes)
    )
    demands = tuple(
        tuple((f"link {k}", rng.choice((0.25, 0.5, 1.0))) for k in range(3) if rng.random() < 0.4)
        for _ in costs
    )
    classes = [rng.randrange(num_classes) for _ in range(program.num_rows)]
    return Prices(costs, demands, np.array(classes, dtype=np.int32))


def agree(seed: int) -> int:
    """Compare a random program with the reference on both hosts, bit by bit; returns on how many its rows slowed down."""
    rng = Random(seed)
    wiring = wire(random_program(rng))
    prices, iterations, slowed = random_prices(rng, wiring.program), rng.randint(1, 3), 0
    for host in HOSTS:
        try:
            expected = interpret_events(wiring, prices, iterations=iterations, host=host)
        except DeadlockError as error:
            with pytest.raises(DeadlockError) as refused:
                run_events(wiring, prices, iterations=iterations, host=host)
            assert str(refused.value) == str(error)
            continue
        ours = run_events(wiring, prices, iterations=iterations, host=host)
        for name, one, other in zip(("posted", "start", "end"), ours, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{name}, seed {seed}, {host}")
        alone = replay(
            wiring, prices.seconds, prices.latency_s, prices.cost_of_row, iterations=iterations, host=host
        )
        slowed += bool((ours[2] > alone[2] + 1e-9).any())
    return slowed


@settings(max_examples=examples(300))
@given(st.integers(0, 10**9))
def test_random_contended_programs_run_as_the_reference(seed: int) -> None:
    agree(seed)


def test_most_random_programs_are_contended() -> None:
    """The comparison above would be replay's if most random programs had enough of everything."""
    assert sum(agree(seed) for seed in range(40)) >= 50


def test_the_compiled_engine_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SMALL_ROWS", -1)
    for seed in range(60):
        agree(seed)


@pytest.mark.parametrize("host", HOSTS)
def test_nothing_runs_in_no_program(host: str) -> None:
    wiring = wire(ProgramBuilder([Axis("pp", 2)]).build())
    prices = price(wiring, COSTS, COSTS, None)
    for engine in (run_events, interpret_events):
        assert [times.shape for times in engine(wiring, prices, iterations=2, host=host)] == [(2, 0)] * 3


def test_there_is_no_other_host() -> None:
    wiring = wire(overlapped().build())
    with pytest.raises(SpecError, match="asynchronous or in_order"):
        run_events(wiring, price(wiring, COSTS, COSTS, None), host="lazy")


def test_shares_that_fill_a_device_exactly_slow_nobody() -> None:
    """0.7 + 0.2 + 0.1 is less than 1 in floating point, and 0.1 + 0.2 + 0.7 more."""
    builder = ProgramBuilder([Axis("pp", 1)], value_kinds=(ValueKind("x"),), duties=(Duty("MAKE", "some"),))
    make = Effect(Kind.CALL, "MAKE", (), (Pattern("x", part="row"),))
    for k in range(3):
        builder.add(0, make, part=k, stream=f"stream{k}", work=Work("MAKE"))
    wiring = wire(builder.build())
    for shares in ((0.7, 0.2, 0.1), (0.1, 0.2, 0.7)):
        prices = Prices(
            tuple(Cost(1.0, compute_share=share) for share in shares), ((),) * 3, np.arange(3, dtype=np.int32)
        )
        for engine in (run_events, interpret_events):
            np.testing.assert_array_equal(engine(wiring, prices)[2], 1.0)


def beside_each_other(*costs: Cost) -> list[float]:
    """When each of several instructions on streams of their own ends that begin at once on one device."""
    builder = ProgramBuilder([Axis("pp", 1)], value_kinds=(ValueKind("x"),), duties=(Duty("MAKE", "some"),))
    make = Effect(Kind.CALL, "MAKE", (), (Pattern("x", part="row"),))
    for k in range(len(costs)):
        builder.add(0, make, part=k, stream=f"stream{k}", work=Work("MAKE"))
    wiring = wire(builder.build())
    prices = Prices(costs, ((),) * len(costs), np.arange(len(costs), dtype=np.int32))
    engine, (_, _, end) = run(wiring, prices)
    assert engine == "event"
    np.testing.assert_array_equal(interpret_events(wiring, prices)[2], end)
    return [float(second) for second in end[0]]


def test_a_curve_says_how_fast_half_a_device_is() -> None:
    """Two kernels that want all of a device: each is granted half. By proportion 2 s of work take 2 s, whoever is first."""
    product, memory = SpeedCurve(((0.5, 0.55),)), SpeedCurve(((0.2, 0.3), (0.5, 0.8)))
    assert beside_each_other(Cost(1.0), Cost(1.0)) == pytest.approx([2.0, 2.0])
    # 0.8 of its speed ends the second at 1.25 s; the first has done 0.6875 by then, and the rest alone
    assert beside_each_other(Cost(1.0, curve=product), Cost(1.0, curve=memory)) == pytest.approx(
        [1.5625, 1.25]
    )
    assert beside_each_other(Cost(1.0), Cost(1.0, curve=memory)) == pytest.approx([1.625, 1.25])
    # three: a third each, on the line between (0.2, 0.3) and (0.5, 0.8): 0.3 + 0.5 * (1/3 - 0.2) / 0.3
    assert beside_each_other(*[Cost(1.0, curve=memory)] * 3) == pytest.approx([1 / (0.3 + 0.2 / 0.9)] * 3)


def test_the_curve_of_proportion_is_proportion() -> None:
    """The part granted is of what is demanded: two that want 0.8 of a device have 0.625 of that each."""
    straight, bent = SpeedCurve(((0.5, 0.5),)), SpeedCurve(((0.625, 0.8),))
    assert beside_each_other(Cost(1.0, curve=straight), Cost(2.0)) == beside_each_other(Cost(1.0), Cost(2.0))
    assert beside_each_other(*[Cost(1.0, compute_share=0.8)] * 2) == pytest.approx([1.6] * 2)
    assert beside_each_other(*[Cost(1.0, compute_share=0.8, curve=bent)] * 2) == pytest.approx([1.25] * 2)


@pytest.mark.parametrize(
    "points",
    [
        ((0.5, 0.0),),
        ((0.2, 0.9), (0.1, 0.95)),
        ((0.0, 0.1),),
        ((0.5, 1.2),),
        ((1.0, 1.0),),
        ((0.3, 0.6), (0.6, 0.5)),
    ],
)
def test_a_curve_that_falls_or_leaves_the_square_is_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(SpecError, match="do not fall"):
        SpeedCurve(points)
