"""The event engine: equal to replay where nothing is shared, and the law of proportional slowing where something is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from meshwright.costs.cost import Cost, Flow
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir import (
    Axis,
    Duty,
    Effect,
    Exchange,
    Kind,
    Pattern,
    ProgramBuilder,
    ValueKind,
    Work,
    replay,
    wire,
)
from meshwright.lowering import Recompute, place
from meshwright.simulator import price, run, run_events
from meshwright.specs import Cluster
from meshwright.specs.error import DeadlockError
from tests.simulator.program import SCHEDULES, training_step

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
