"""Tests of costs/roofline.py: the slower of arithmetic and traffic, on preset hardware."""

import pytest

from meshwright.costs.roofline import LINK_EFFICIENCY, MATMUL_EFFICIENCY, MEMORY_EFFICIENCY, Roofline
from meshwright.ir.table import Exchange, Work
from meshwright.specs.cluster.cluster import ClusterSpec, Level
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.error import SpecError
from meshwright.specs.operator import Operator

DEVICE = DeviceSpec("made up", 10**9, 1e12, {"bfloat16": 1e14})
CLUSTER = ClusterSpec("four", (DEVICE,) * 4, (Level("node", 4, 1e11, 1e-6),))


def work(flops: float, num_bytes: float, kind: str = "matmul") -> Work:
    return Work("F", dtype="bfloat16", operators=(Operator(kind, flops, num_bytes, (1, 1, 1), 2),))


def test_arithmetic_or_traffic_whichever_is_slower():
    costs = Roofline(CLUSTER)
    assert costs.cost(work(1e12, 1.0)).seconds == pytest.approx(2 * 1e-2 / MATMUL_EFFICIENCY)
    assert costs.cost(work(1.0, 1e10)).seconds == pytest.approx(2 * 1e-2 / MEMORY_EFFICIENCY)
    assert costs.cost(work(1e12, 1e10, "norm")).seconds == pytest.approx(2 * 1e-2 / MEMORY_EFFICIENCY)


def test_an_operator_costs_at_least_its_launch_and_says_never_seen():
    cost = Roofline(CLUSTER, operator_overhead_s=1e-3).cost(work(1.0, 1.0))
    assert cost.seconds == pytest.approx(2e-3)
    assert cost.basis == "never seen" and cost.prediction().high > cost.seconds


def test_messages_and_collectives_on_links():
    costs = Roofline(CLUSTER)
    message = costs.exchange_cost(Exchange(("pp",), (0, 1)), 1e9, (0, 1))
    assert message.seconds == pytest.approx(1e-2 / LINK_EFFICIENCY)
    assert message.latency_s == pytest.approx(CLUSTER.latency_s(0, 1))
    ring = costs.exchange_cost(Exchange(("dp",), algorithm="ring"), 1e9, (0, 1, 2, 3))
    expected = 6 * CLUSTER.latency_s(0, 1) + 1.5 * 1e-2 / LINK_EFFICIENCY
    assert ring.seconds == pytest.approx(expected)
    assert costs.exchange_cost(Exchange(("pp",), (0, 0)), 1e9, (0, 0)).seconds == 0.0


def test_an_efficiency_above_one_is_refused():
    with pytest.raises(SpecError, match="memory is 1.5"):
        Roofline(CLUSTER, memory_efficiency=1.5)


def test_a_format_without_a_peak_is_refused():
    with pytest.raises(SpecError, match="float8"):
        Roofline(CLUSTER).cost(Work("F", dtype="float8", flops=1.0))
