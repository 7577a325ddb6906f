"""Every schedule through every pass that applies: proven, the same in text, and timed as the reference says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np
import pytest

from meshwright.ir.judge.metrics import bubble, device_time_s, idle_s, peak_alive, span_s
from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import ParameterGroup
from meshwright.ir.text import from_text, to_text
from meshwright.ir.timing.reference import interpret
from meshwright.ir.timing.replay import HOSTS, replay
from meshwright.ir.timing.wiring import wire
from meshwright.ir.trace import Trace
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from tests.covering import covered
from tests.ir.random_program import random_costs

COUNTS = [(1, 1), (1, 3), (2, 1), (2, 2), (2, 5), (3, 2), (3, 7), (4, 8)]
PASSES = {
    "plain": (),
    "recompute": (Recompute(),),
    "split": (SplitBackward(),),
    "split_recompute": (SplitBackward(), Recompute()),
}
NAMES = sorted(
    name for name, made in registered().items() if made.function.__module__.startswith("meshwright.")
)


@cache  # programs do not change; five tests look at each
def lowered(name: str, passes: str, p: int, m: int, dp: int = 1) -> Program:
    """The whole program of a training iteration."""
    orders = registered()[name].orders(p, m)
    stages = 1 + max(c.stage for row in orders for c in row)
    groups = [ParameterGroup(f"stage{s}", (s,), 4, ("dp",)) for s in range(stages)]
    program = program_of_orders(orders, groups=groups, collapsed=[Axis("dp", dp, False)])
    for one in PASSES[passes]:
        program = one(program)
    return Transfers()(OptimizerStep()(ReduceGradients()(program)))


def cases(counts: Sequence[tuple[int, int]]) -> pytest.MarkDecorator:
    """Every schedule with every choice of passes at every count; a schedule that splits by itself is not split again."""
    found = [
        ((name, passes), p, m)
        for name in NAMES
        for passes in PASSES
        for p, m in counts
        if registered()[name].takes_devices(p)
        and not (registered()[name].splits_backward and "split" in passes)
    ]
    choices = [{"schedule": name, "passes": passes, "counts": (p, m)} for (name, passes), p, m in found]
    return pytest.mark.parametrize(
        ("case", "p", "m"),
        covered(found, choices),
        ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
    )


EVERY_CASE = cases(COUNTS)


@EVERY_CASE
def test_it_is_proven_on_both_hosts(case: tuple[str, str], p: int, m: int) -> None:
    for dp in (1, 2):
        program = lowered(*case, p, m, dp)
        for host in HOSTS:
            verify(program, host)
        for axis in program.axes:
            verify(program.expand(axis.name))


@EVERY_CASE
def test_it_replays_as_the_reference(case: tuple[str, str], p: int, m: int) -> None:
    program = lowered(*case, p, m, 2)
    if program.num_rows > 200:
        few = max(n for n in range(1, 4) if n <= p and registered()[case[0]].takes_devices(n))
        program = lowered(*case, few, min(m, 4), 2)
    seconds, latency_s = random_costs(Random(p * 100 + m), program)
    for host in HOSTS:
        expected = interpret(program, seconds, latency_s, 2, host)
        for one, other in zip(
            expected, replay(wire(program), seconds, latency_s, iterations=2, host=host), strict=True
        ):
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-9)


@EVERY_CASE
def test_its_text_is_the_program(case: tuple[str, str], p: int, m: int) -> None:
    program = lowered(*case, p, m, 2)
    back = from_text(to_text(program))
    assert back.digest() == program.digest()
    assert [back.row(i) for i in range(back.num_rows)] == [program.row(i) for i in range(program.num_rows)]


@cases([(2, 4), (4, 8)])
def test_its_metrics_fit_together(case: tuple[str, str], p: int, m: int) -> None:
    program = lowered(*case, p, m)
    trace = Trace(
        program, *replay(wire(program), *random_costs(Random(m), program), iterations=2), "max-plus"
    )
    assert 0.0 <= bubble(trace) < 1.0
    assert device_time_s(trace) <= span_s(trace) + 1e-12
    assert idle_s(trace) == pytest.approx(bubble(trace) * span_s(trace) * p)
    assert all(1 <= peak <= m * registered()[case[0]].num_chunks for peak in peak_alive(trace))


@pytest.mark.parametrize("p, m", [(1, 1), (2, 3), (4, 5)])
def test_all_schedules_make_the_same_gradients(p: int, m: int) -> None:
    """The symbolic content of every stage's parameters after the step is the same for all schedules of as many stages."""
    seen: dict[int, set[frozenset[object]]] = {}
    for name in NAMES:
        if registered()[name].splits_backward or not registered()[name].takes_devices(p):
            continue
        program = lowered(name, "plain", p, m)
        seen.setdefault(program.tables.num_stages, set()).add(frozenset(outputs(program).values()))
    assert seen and all(len(contents) == 1 for contents in seen.values())


@EVERY_CASE
def test_every_move_is_needed_once(case: tuple[str, str], p: int, m: int) -> None:
    program = lowered(*case, p, m)
    moves = Counter(
        view.text
        for d in range(p)
        for view in program.instructions(d)
        if view.name.startswith(("SEND", "RECV"))
    )
    assert set(moves.values()) <= {1}
