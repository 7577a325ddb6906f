"""The program of a step whose sequences are in groups of ranks: verified, simulated, and refused where it is damaged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.text import from_text, to_text
from meshwright.ir.timing.matching import match
from meshwright.lowering.grouped_program import grouped_program
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import MeshwrightError, PlanError
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from tests.grouped_case import CASES, MIXED, UNEVEN, WHOLE, drawn_batches, grouped_plan


def program_of(groups: GroupedBatch, model: str = "llama", **choices: object) -> Program:
    return grouped_program(grouped_plan(model, groups.num_ranks, **choices), groups)


@pytest.mark.parametrize("name", CASES)
def test_groups_of_any_sizes_are_verified_on_both_hosts_and_simulated(name: str) -> None:
    for choices in (
        {},
        {"tp": 2},
        {"recompute": "full"},
        {"recompute": "selective"},
        {"sharding": "zero1", "passes": "clip_gradients"},
        {"passes": "clip_gradients"},
    ):
        program = program_of(CASES[name], **choices)
        for host in HOSTS:
            verify(program, host)
        text = to_text(program)
        assert to_text(from_text(text)) == text
    costs = FixedCosts.from_times(1.0, 1.0, 1.0)
    trace = simulate_program(program_of(CASES[name]), costs, costs)
    assert float(trace.end_s.max()) > 0


def test_a_rank_has_a_microbatch_for_each_of_its_groups_and_they_weigh_as_their_tokens() -> None:
    program = program_of(UNEVEN)
    t, c = program.tables, program.columns
    assert sum(each.weight for each in t.microbatches) == pytest.approx(1.0, abs=1e-12)
    for number, (own, microbatch) in enumerate(zip(UNEVEN.microbatches, t.microbatches, strict=True)):
        assert microbatch.tokens == own.part.num_tokens
        share = own.part.num_real_tokens / sum(UNEVEN.lengths) if own.sequences else 0.0
        assert microbatch.weight == pytest.approx(share, abs=1e-12)
        assert {hop.device for hop in t.paths[microbatch.path]} == {own.rank}
        lists = program.list_of_row[
            (c.microbatch == number) & (program.kinds == Kind.COMPUTE) & (c.work >= 0)
        ]
        assert own.rank in lists


def test_a_group_of_one_sends_nothing_and_others_send_the_closed_form() -> None:
    """Of each layer: D - 1 hops forward, and backward as many again, and D of gradients."""
    program = program_of(MIXED)
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    layers = 4
    for number, own in enumerate(MIXED.microbatches):
        is_own = program.columns.microbatch == number
        degree = own.part.degree
        assert (names[is_own] == "SEND_BLOCK").sum() == 2 * layers * (degree - 1)
        assert (names[is_own] == "SEND_BLOCK_GRADIENT").sum() == layers * degree * (degree > 1)


@pytest.mark.parametrize("name", ["ATTEND", "SEND_BLOCK", "RECEIVE_BLOCK_GRADIENT", "SEND_BLOCK_GRADIENT"])
def test_a_row_that_is_left_out_is_refused(name: str) -> None:
    program = program_of(WHOLE)
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    left_out = int(np.flatnonzero(names == name)[5])
    kept = np.delete(np.arange(program.num_rows), left_out)
    offsets = program.offsets - (program.offsets > left_out)
    with pytest.raises(MeshwrightError):
        verify(replace(program, columns=program.columns.take(kept), offsets=offsets))


def test_a_list_with_its_groups_in_another_order_is_refused() -> None:
    """Two groups of the same two ranks, of which one runs the second first."""
    groups = GroupedBatch((8, 8), 2, (SequenceGroup((0, 1), (0,)), SequenceGroup((0, 1), (1,))))
    program = program_of(groups)
    own = np.arange(int(program.offsets[1]))
    microbatch = program.columns.microbatch[own]
    is_step = np.array([e.name in ("STEP", "REDUCE_GRAD") for e in program.tables.effects])[
        program.columns.effect[own]
    ]
    turned = np.concatenate(
        [own[(microbatch == 2) & ~is_step], own[(microbatch == 0) & ~is_step], own[is_step]]
    )
    order = np.concatenate([turned, np.arange(len(own), program.num_rows)])
    with pytest.raises(MeshwrightError):
        verify(program.reordered(order, program.offsets))


@pytest.mark.parametrize(
    ("choices", "said"),
    [({"pp": 2, "dp": 2}, "dp"), ({"sharding": "zero3"}, "sharding"), ({"context": "ulysses"}, "context")],
)
def test_what_groups_do_not_go_with_is_refused_by_name(choices: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        grouped_program(grouped_plan(num_ranks=4, **choices), WHOLE)


@pytest.mark.parametrize("choices", [{}, {"recompute": "selective"}, {"split_backward": True}])
def test_what_groups_offload_is_stored_behind_its_forward_and_loaded_ahead_of_its_backward(
    choices: dict[str, object],
) -> None:
    half, whole = (replace(WHOLE, groups=(WHOLE.groups[0]._replace(offload=share),)) for share in (0.5, 1.0))
    counts = []
    for groups in (WHOLE, half, whole):
        program = program_of(groups, "deep", **choices)
        for host in HOSTS:
            verify(program, host)
        names = [program.tables.effects[e].name for e in program.columns.effect.tolist()]
        counts.append(names.count("STORE_SAVED"))
        assert names.count("LOAD_SAVED") == counts[-1]
    assert counts[0] == 0 < counts[1] < counts[2]


def test_what_is_offloaded_leaves_the_device_and_costs_its_way() -> None:
    long = GroupedBatch((4096,), 2, (SequenceGroup((0, 1), (0,)),))
    whole = replace(long, groups=(long.groups[0]._replace(offload=1.0),))
    here, program = (program_of(groups, "deep") for groups in (long, whole))
    t, c = program.tables, program.columns
    saved = next(row.by_index for row in t.value_bytes if row.kind == "saved")
    names = np.array([effect.name for effect in t.effects])[c.effect]
    for row in np.flatnonzero(np.isin(names, ["STORE_SAVED", "LOAD_SAVED"])).tolist():
        work = t.works[c.work[row]]
        moved = saved[c.stage[row]] * t.microbatches[c.microbatch[row]].tokens
        assert work.bytes == pytest.approx(moved) and work.operators[0].kind == "host_copy"
    costs = FixedCosts.from_times(1.0, 1.0, 1.0)
    before, behind = (metrics.peak_bytes(simulate_program(each, costs, costs)) for each in (here, program))
    assert behind < 0.6 * before


def test_a_load_that_is_left_out_is_refused() -> None:
    program = program_of(replace(WHOLE, groups=(WHOLE.groups[0]._replace(offload=1.0),)), "deep")
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    left_out = int(np.flatnonzero(names == "LOAD_SAVED")[1])
    kept = np.delete(np.arange(program.num_rows), left_out)
    with pytest.raises(MeshwrightError):
        verify(program.reordered(kept, program.offsets - (program.offsets > left_out)))


def test_what_is_recomputed_whole_offloads_nothing() -> None:
    groups = replace(WHOLE, groups=(WHOLE.groups[0]._replace(offload=1.0),))
    with pytest.raises(PlanError, match="offloads"):
        program_of(groups, recompute="full")


@settings(max_examples=15, deadline=None)
@given(drawn_batches())
def test_drawn_groups_never_wait_in_a_circle(groups: GroupedBatch) -> None:
    program = program_of(groups, "gpt")
    verify(program)
    check_that_all_meet(program, groups)


def check_that_all_meet(program: Program, groups: GroupedBatch) -> None:
    """In every layer every rank of a group attends to the block of each once, and gradients come home: what no layout
    says, as groups are no axis."""
    c, other = program.columns, match(program)
    names = np.array([effect.name for effect in program.tables.effects])[c.effect]
    came = {}  # by (microbatch, hop, step) whence, in the same step: the microbatch of the sender
    for name in ("RECEIVE_BLOCK", "RECEIVE_BLOCK_GRADIENT"):
        for row in np.flatnonzero(names == name).tolist():
            key = name, int(c.microbatch[row]), int(c.hop[row]), int(c.part[row])
            came.setdefault(key, []).append(int(c.microbatch[other[row]]))
    layers = {int(hop) for hop in c.hop[names == "ATTEND"].tolist()}
    first = 0
    for group in groups.groups:
        members = range(first, first + group.degree)
        for hop in layers if group.degree > 1 else ():
            for own in members:
                seen, at = {own}, own
                for step in reversed(range(group.degree - 1)):
                    senders = set(came["RECEIVE_BLOCK", at, hop, step])
                    assert len(senders) == 1
                    at = senders.pop()
                    seen.add(at)
                assert seen == set(members)
                home = own
                for step in reversed(range(group.degree)):
                    (home,) = set(came["RECEIVE_BLOCK_GRADIENT", home, hop, step])
                assert home == own
        first += group.degree


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(drawn_batches(num_ranks=6, most=10))
def test_a_thousand_drawn_batches_never_wait_in_a_circle(groups: GroupedBatch) -> None:
    program = program_of(groups, "gpt")
    verify(program)
    check_that_all_meet(program, groups)
