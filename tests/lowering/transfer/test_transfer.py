"""Transfers: every legal order of computes runs on both hosts, and with latency only it is the latency-edge model."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from tests.covering import always
from tests.ir.random_program import random_orders
from tests.schedules.timing import latency_edge_span, trace_of

from meshwright.ir.judge.metrics import span_s
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing.replay import HOSTS, replay
from meshwright.ir.timing.wiring import wire
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.transfer import transfer
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import Orders, registered
from meshwright.specs.error import DeadlockError, ScheduleError


def one_stream(program: Program) -> Program:
    """All exchanges of a device on one stream, none batched."""
    streams = [*program.tables.streams, "comm"]
    moved = np.where(program.columns.exchange >= 0, len(streams) - 1, program.columns.stream)
    return program.with_tables(streams=tuple(streams)).with_columns(stream=moved)


def check_order(orders: Orders, seed: int) -> None:
    rng = Random(seed)
    program = Transfers()(program_of_orders(orders))
    times = (rng.uniform(0.1, 2), rng.uniform(0.1, 2), rng.uniform(0.1, 2))
    comm = rng.choice((0.0, 0.3, 1.7))
    for host in HOSTS:
        trace = trace_of(program, times, 1.0, comm, host=host)
        expected = latency_edge_span(orders, times, 1.0, comm)
        if host == "asynchronous":
            assert span_s(trace) == pytest.approx(expected, abs=1e-9)
        else:
            assert span_s(trace) >= expected - 1e-9
        verify(program, host)


@pytest.mark.parametrize("block", always(range(4), {0}))
def test_random_legal_orders_are_accepted(block: int) -> None:
    """250 random legal orders of computes, split and unsplit, over random placements; 1,000 with the slow tests."""
    for seed in range(block * 250, block * 250 + 250):
        rng = Random(seed)
        orders = random_orders(
            rng, rng.randint(1, 4), rng.randint(1, 5), rng.randint(1, 3), rng.random() < 0.4
        )
        check_order(orders, seed)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("host", HOSTS)
def test_1f1b_on_one_stream_is_refused(p: int, host: str) -> None:
    for m in range(2, 13):
        program = one_stream(Transfers()(program_of_orders(registered()["1f1b"].orders(p, m))))
        with pytest.raises(DeadlockError) as refused:
            verify(program, host)
        assert "<-- here" in str(refused.value)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_the_textbook_placement_on_one_stream(p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every receive right before its use: one microbatch runs, two wait for each other, also with nothing fetched ahead."""
    monkeypatch.setattr(transfer, "COMPUTES_AHEAD", 0)
    verify(one_stream(Transfers()(program_of_orders(registered()["1f1b"].orders(p, 1)))))
    for m in range(2, 13):
        with pytest.raises(DeadlockError):
            verify(one_stream(Transfers()(program_of_orders(registered()["1f1b"].orders(p, m)))))


def test_receives_stand_in_the_order_of_the_sends_before_a_compute() -> None:
    for seed in range(60):
        rng = Random(seed)
        p = rng.randint(2, 4)
        program = Transfers()(program_of_orders(random_orders(rng, p, rng.randint(1, 5), rng.randint(1, 3))))
        wiring = wire(program)
        for source in range(p):
            for target in range(p):
                sends = [
                    i
                    for i in range(program.num_rows)
                    if program.kinds[i] == Kind.SEND
                    and (program.list_of_row[i], program.list_of_row[wiring.next_end[i]]) == (source, target)
                ]
                receives = wiring.next_end[sends]
                assert (np.diff(receives) > 0).all()
                assert {program.row(i).stream for i in sends} <= {f"send/pp{target}"}
                assert {program.row(int(i)).stream for i in receives} <= {f"receive/pp{source}"}


def test_nothing_is_sent_within_a_device() -> None:
    program = Transfers()(program_of_orders(registered()["interleaved_1f1b"].orders(1, 3, 3)))
    assert not (program.columns.exchange >= 0).any()
    p, v, m = 3, 2, 4
    program = Transfers()(program_of_orders(registered()["interleaved_1f1b"].orders(p, m, v)))
    assert (program.kinds == Kind.SEND).sum() == (program.kinds == Kind.RECEIVE).sum() == 2 * (p * v - 1) * m


def test_an_output_that_nobody_reads_is_named() -> None:
    orders = registered()["1f1b"].orders(2, 2)
    orders[1] = [c for c in orders[1] if c != ("F", 1, 1)]
    with pytest.raises(ScheduleError, match="device 0, position 1: nobody reads what 0F1 makes"):
        Transfers()(program_of_orders(orders))


@pytest.mark.slow
def test_many_more_random_legal_orders() -> None:
    for seed in range(10_000, 15_000):
        rng = Random(seed)
        check_order(
            random_orders(rng, rng.randint(1, 6), rng.randint(1, 8), rng.randint(1, 3), rng.random() < 0.4),
            seed,
        )


def test_transfers_cost_nothing_where_they_only_have_latency() -> None:
    """Occupied streams show: with seconds instead of latency a span can only grow."""
    program = Transfers()(program_of_orders(registered()["1f1b"].orders(4, 8)))
    kinds = program.kinds
    exchange = np.isin(kinds, (Kind.SEND, Kind.RECEIVE))
    compute = np.where(exchange, 0.0, 1.0)
    late = replay(wire(program), compute, np.where(exchange, 0.5, 0.0))[2].max()
    busy = replay(wire(program), np.where(exchange, 0.5, 1.0), np.zeros(len(kinds)))[2].max()
    assert busy >= late
