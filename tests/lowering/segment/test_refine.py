"""Programs refined into segments: their paths, groups and duties, their text, their backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.golden.text import check_golden
from tests.lowering.plans import lowered, plan, rows_named, work_of
from tests.lowering.segment.segment_program import (
    FOUR_LAYERS,
    ONE_LAYER,
    SEQUENCE_PARALLEL,
    TP,
    TWO_LAYERS,
    segment_program,
)

from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.lowering.lower import lower
from meshwright.lowering.order import with_works
from meshwright.lowering.segment.chain_rows import ChainRows
from meshwright.lowering.segment.refine import Refine, StageRows
from meshwright.lowering.transfer.stage_edge import StageEdge, edges_of
from meshwright.schedules import registered
from meshwright.specs.error import ProgramError
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.operator import total_flops
from meshwright.specs.plan.plan import PassOption
from meshwright.stage.chain.decoder import decoder_chain
from meshwright.stage.chain.degrees import InnerDegrees
from meshwright.stage.operator.attention import MERGE, OF_ATTENTION

CASES: dict[str, dict[str, Any]] = {"tp": TP, "tp_sequence_parallel": SEQUENCE_PARALLEL}


def texts(program: Program, device: int = 0) -> list[str]:
    return [view.text for view in program.instructions(device)]


@pytest.mark.parametrize("case", CASES)
def test_golden_segments(case: str) -> None:
    program = segment_program(**CASES[case])
    verify(program)
    program = with_works(program.with_tables(value_bytes=()), {})  # what it does, without what that costs
    text = to_text(program)
    check_golden(f"segments_{case}", text)
    assert from_text(text).digest() == program.digest()


def moves(program: Program) -> list[tuple[str, str, str]]:
    """Exchanges in order: name, what is taken, what is made."""
    rows = np.flatnonzero(program.columns.exchange >= 0)
    effects = [program.tables.effects[e] for e in program.columns.effect[rows].tolist()]
    return [(each.name, each.reads[0].kind, each.writes[0].kind) for each in effects]


def test_backward_is_the_transpose_of_forward() -> None:
    """In reverse: of every gather a scatter, of every scatter a gather; what was gathered for a product is gathered again."""
    found = moves(segment_program(**SEQUENCE_PARALLEL))
    gathered, scattered = ("ALL_GATHER", "normed", "entered"), ("REDUCE_SCATTER", "partial", "summed")
    assert found[:6] == [scattered, gathered, scattered, gathered, scattered, gathered]
    assert found[6:8] == [("MAXIMUM", "largest", "maximum"), ("ALL_REDUCE", "terms", "sums")]
    back = [each for each in found[8:] if each[2] not in ("entered_again", "reduced_gradient")]
    gathered, scattered = (
        ("ALL_GATHER", "summed_gradient", "partial_gradient"),
        ("REDUCE_SCATTER", "entered_gradient", "normed_gradient"),
    )
    assert back == [scattered, gathered, scattered, gathered, scattered, gathered]
    again = [each for each in found[8:] if each[2] == "entered_again"]
    assert again == [("ALL_GATHER", "normed", "entered_again")] * 3


def test_a_sum_that_all_have_goes_back_without_an_exchange() -> None:
    """What enters a product is summed, what left one is there: two of each for a layer, and those of the ends."""
    found = moves(segment_program(**TP))
    left, entered = ("ALL_REDUCE", "partial", "summed"), ("ALL_REDUCE", "entered_gradient", "normed_gradient")
    assert [found.count(left), found.count(entered)] == [3, 3]
    assert len(found) == 3 + 3 + len(("MAXIMUM", "ALL_REDUCE of terms"))


def test_every_hop_is_as_many_as_its_stage_has_segments() -> None:
    one, program = segment_program(**TP), segment_program(TWO_LAYERS, **TP, pp=2)
    (path,) = program.tables.paths
    assert [hop.stage for hop in path] == list(range(program.tables.num_stages))
    devices = [hop.device for hop in path]
    assert devices == sorted(devices) and set(devices) == {0, 1}
    computes = [view for view in one.instructions(0) if view.name == "F"]
    assert [view.hop for view in computes] == list(range(one.tables.num_stages))


def test_groups_belong_to_the_segments_that_use_them() -> None:
    program = segment_program(**SEQUENCE_PARALLEL, split_backward=True)
    tables = program.tables
    due = next(duty for duty in tables.duties if duty.name == "W").stages
    assert {stage for group in tables.groups for stage in group.stages} == set(due)
    assert {view.stage for view in program.instructions(0) if view.name == "W"} == set(due)
    assert 0 < len(due) < tables.num_stages, "the sums of the loss have no parameter"


def test_a_weight_gradient_left_out_is_refused() -> None:
    program = segment_program(**TP, split_backward=True)
    rows = [row for row, text in enumerate(texts(program)) if "W" in text]
    for row in rows:
        order = [each for each in range(program.num_rows) if each != row]
        with pytest.raises(ProgramError, match="rows of W, its duty is"):
            verify(program.reordered(order, program.offsets - [0, 1]))


def test_a_program_with_exchanges_is_not_refined() -> None:
    chain = decoder_chain(ONE_LAYER, StageLayers(0, 1, False, False), InnerDegrees(tp=2))
    rows = ChainRows(chain, (True,) * len(chain.segments))
    stages = (StageRows(rows, ()),) * 2
    with pytest.raises(ProgramError, match="a program with exchanges is not refined"):
        Refine(stages)(lowered(plan(pp=2)))


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_what_a_backward_fetches_first_is_fetched_beside_the_backward_before_it(pieces: int) -> None:
    """Pieces of a stage follow each other as the halves of a block do: only the first backward of all waits."""
    chosen = plan(FOUR_LAYERS, batch=1, **SEQUENCE_PARALLEL)
    program = lower(chosen, registered()[chosen.schedule], pieces=(pieces,), in_segments=True)
    verify(program)
    effects = [program.tables.effects[e] for e in program.columns.effect.tolist()]
    stages = program.columns.stage.tolist()
    fetched = [n for n, each in enumerate(effects) if any(p.kind == "entered_again" for p in each.writes)]
    assert len(fetched) == 9  # of every half of a block, and of the head
    reads = [any(p.kind == "entered_again" for p in each.reads) for each in effects]
    own = [stages[reads.index(True, fetch)] == stages[fetch] for fetch in fetched]
    assert own == [True] + [False] * 8


@pytest.mark.parametrize("layout", ["", "contiguous", "stripe"])
@pytest.mark.parametrize(("step", "name"), [("ATTEND", "F"), ("ATTEND_BACKWARD", "B")])
def test_steps_of_a_ring_together_are_attention(layout: str, step: str, name: str) -> None:
    """The first step is a causal product of the own piece, every other one of a piece that came, and its merge."""
    choices: dict[str, Any] = {"cp": 4, "token_layout": layout, "batch": 1}
    works = [view.work for view in rows_named(segment_program(**choices), step)]
    products = [[each for each in work.operators if each.kind == "attention"] for work in works]
    assert [sum(each.count for each in own) for own in products] == [1, 1, 1, 1]
    assert [own[0].shape[-1] for own in products] == ([1, 1, 1, 1] if layout == "stripe" else [1, 0, 0, 0])
    merges = [sum(each.label == MERGE for each in work.operators) for work in works]
    assert merges == [0, 1, 1, 1]
    whole = work_of(lowered(plan(ONE_LAYER, **choices)), name, 0).operators
    core = [each for each in whole if each.kind == "attention" or each.label in OF_ATTENTION]
    assert sum(work.flops for work in works) == pytest.approx(total_flops(core))


def test_edges_beside_the_path_are_of_whole_stages() -> None:
    """A stage that others read beside the path is no chain: what it sends inside stays a part of its computes."""
    connect = PassOption("connect_stages", {"layer_edges": "0>2 0>3"})
    chosen = plan(FOUR_LAYERS, pp=4, tp=2, passes=(connect,))
    program = lower(chosen, registered()[chosen.schedule], in_segments=True)
    assert program.tables.num_stages == 4 and any(work.inner for work in program.tables.works)
    assert edges_of(program) == (StageEdge(0, 2), StageEdge(0, 3))
    verify(program)
