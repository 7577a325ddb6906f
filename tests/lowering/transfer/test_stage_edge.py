"""Edges beside the path: as data, sent along, verified on both hosts for any legal order and placement."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from tests.ir.random_program import random_orders

from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import ParameterGroup
from meshwright.ir.text import from_text, to_text
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.reduction import OptimizerStep
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.stage_edge import (
    ConnectStages,
    LayerEdge,
    StageEdge,
    edges_of,
    parse_edges,
    skip_edges,
)
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import PlanError, ProgramError, ScheduleError

U_SHAPE = (StageEdge(0, 3), StageEdge(1, 2))


def connected(edges: tuple[StageEdge, ...], *passes: object) -> Program:
    program = program_of_orders(registered()["1f1b"].orders(4, 4))
    for one in (*passes, ConnectStages(edges), Transfers()):
        program = one(program)  # type: ignore[operator]
    return program


def texts(program: Program, *names: str) -> list[str]:
    return [v.text for d in range(program.num_lists) for v in program.instructions(d) if v.name in names]


def test_edges_between_layers_become_edges_between_stages() -> None:
    layers = parse_edges("0>7 1>6 2>5 3>4")
    assert layers[0] == LayerEdge(0, 7)
    assert skip_edges(layers, (2, 2, 2, 2)) == ((0, 3, 0), (0, 3, 1), (1, 2, 0), (1, 2, 1))
    assert skip_edges(layers, (8,)) == ()
    assert skip_edges(parse_edges("0>3 0>5 0>4"), (2, 2, 2)) == ((0, 1, 0), (0, 2, 0))
    with pytest.raises(PlanError, match="no edge between layers"):
        parse_edges("0-3")
    with pytest.raises(PlanError, match="an earlier layer"):
        skip_edges(parse_edges("0>9"), (4, 4))


@pytest.mark.parametrize("passes", [(), (Recompute(),), (SplitBackward(), Recompute())], ids=len)
def test_what_a_stage_reads_is_sent_to_it_and_its_gradient_back(passes: tuple[object, ...]) -> None:
    program = connected(U_SHAPE, *passes)
    for host in HOSTS:
        verify(program, host)
    assert edges_of(program) == U_SHAPE
    assert texts(program, "SEND_SKIP") == [f"{s}SEND_SKIP{m}" for s in (0, 1) for m in range(4)]
    assert sorted(texts(program, "RECV_SKIP_B")) == [f"{s}RECV_SKIP_B{m}" for s in (0, 1) for m in range(4)]
    assert from_text(to_text(program)).digest() == program.digest()


def test_several_readers_have_a_part_each_and_a_device_gets_a_value_once() -> None:
    edges = (StageEdge(0, 1), StageEdge(0, 2), StageEdge(0, 3), StageEdge(0, 3, 1))
    program = connected(edges)
    verify(program)
    received = texts(program, "RECV_SKIP_B")
    assert received[:4] == ["0RECV_SKIP_B0", "0RECV_SKIP_B0.1", "0RECV_SKIP_B0.2", "0RECV_SKIP_B0.3"]
    two = [["F0", "2F0", "3F0", "3B0", "2B0", "B0"], ["1F0", "1B0"]]
    program = program_of_orders([[_read(text, d) for text in row] for d, row in enumerate(two)])
    program = Transfers()(ConnectStages(edges[:3])(program))
    verify(program)
    assert texts(program, "SEND_SKIP") == ["0SEND_SKIP0"]  # stages 2 and 3 are where stage 0 is


def _read(text: str, device: int) -> object:
    from meshwright.schedules.order import read_compute

    return read_compute(text, device, "test")


@pytest.mark.parametrize("block", range(2))
def test_random_orders_and_placements_run_on_both_hosts(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        rng = Random(seed)
        orders = random_orders(
            rng, rng.randint(1, 4), rng.randint(1, 4), rng.randint(2, 3), rng.random() < 0.4
        )
        program = program_of_orders(orders)
        n = len(program.tables.paths[0])
        pairs = [(s, t) for s in range(n) for t in range(s + 1, n)]
        edges = [StageEdge(s, t) for s, t in rng.sample(pairs, min(len(pairs), rng.randint(1, 4)))]
        program = Transfers()(ConnectStages(tuple(edges))(program))
        for host in HOSTS:
            verify(program, host)


def test_placement_and_order_do_not_change_what_parameters_are_made_of() -> None:
    """The symbolic content of every stepped parameter is that of the schedule on one device."""

    def contents(schedule: str, devices: int) -> dict[int, int]:
        program = program_of_orders(
            registered()[schedule].orders(devices, 4),
            groups=[ParameterGroup(f"stage{s}", (s,)) for s in range(4)],
        )
        program = OptimizerStep()(Transfers()(ConnectStages(U_SHAPE)(program)))
        verify(program)
        return {code: content for (_, code), content in outputs(program).items()}

    assert contents("1f1b", 4) == contents("gpipe", 4) == contents("interleaved_1f1b", 2)


@pytest.mark.parametrize("name", ["SEND_SKIP", "RECV_SKIP", "SEND_SKIP_B", "RECV_SKIP_B"])
def test_a_lost_move_is_an_error(name: str) -> None:
    program = connected(U_SHAPE)
    row = next(v.row for d in range(4) for v in program.instructions(d) if v.name == name)
    keep = np.delete(np.arange(program.num_rows), row)
    offsets = program.offsets - (program.offsets > row)
    with pytest.raises(ProgramError):
        verify(program.reordered(keep, offsets))


def test_edges_that_no_path_has_are_refused() -> None:
    for edge in (StageEdge(2, 1), StageEdge(1, 1), StageEdge(1, 4)):
        with pytest.raises(ProgramError, match="a path goes through"):
            connected((edge,))
    program = program_of_orders([[_read(t, 0) for t in ("F0", "B0")], [_read(t, 1) for t in ("F0", "B0")]])
    program = ConnectStages((StageEdge(0, 1),))(program)
    effects = [e._replace(writes=e.writes[:2]) if e.name == "F" else e for e in program.tables.effects]
    with pytest.raises(ScheduleError, match="which no compute makes"):
        Transfers()(program.with_tables(effects=tuple(effects)))
