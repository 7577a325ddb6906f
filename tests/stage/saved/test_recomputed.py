"""Recompute of some blocks: which they are in every piece, what they cost, and what is kept between none and all."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lowering.plans import (
    EXPERTS,
    SEQUENCE,
    AskedLinks,
    NamedWork,
    inner_of,
    lowered,
    plan,
    rows_named,
    work_of,
)

from meshwright.ir.core_vocabulary import REMADE
from meshwright.ir.judge.metrics import peak_bytes, span_s
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.prediction.memory_estimate import ACTIVATIONS, estimate_memory
from meshwright.schedules import registered
from meshwright.simulator.simulate import simulate_program
from meshwright.specs import Cluster, ModelSpec, Plan, PlanError, StageLayers, total_flops
from meshwright.stage.piece import piece_layers
from meshwright.stage.saved.recomputed import (
    is_partly_recomputed,
    is_recomputed,
    kept_layers,
    recomputed_layers,
    recomputes_ends,
)
from meshwright.stage.saved.saved import boundary_bytes_per_token
from meshwright.stage.saved.size import kept_bytes_per_token, remade_bytes_per_token

DEEP = ModelSpec.decoder(8, 64, 8, num_kv_heads=4, vocabulary_size=96, intermediate_size=96)
OWN = {"dtype": "float32", "master_dtype": "", "reduction_dtype": ""}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zero3": {"dp": 2, "sharding": "zero3", "overlap": ("reduce", "gather")},
    "tp": {"tp": 2},
    "sequence parallel": {"tp": 2, "sequence_parallel": True, "dp": 2},
    "split vocabulary": {"vocabulary": "one_barrier"},
    "split backward": {"split_backward": True},
    "zb_h1": {"schedule": "zb_h1"},
    "interleaved": {"schedule": "interleaved_1f1b"},
    "early stop": {"software": "eager"},
    "own decoder": OWN,
}


def deep(*counts: int, recompute: str = "full", **choices: Any) -> Plan:
    """Eight blocks on two devices."""
    return plan(DEEP, **{"pp": 2, "recompute": recompute, "recompute_blocks": counts, **choices})


def counted(chosen: Plan, recompute: str, count: int) -> Plan:
    """So many blocks of every stage; 0: nothing is recomputed."""
    if count == 0:
        return chosen.changed(recompute="none", recompute_blocks=())
    counts = tuple(min(count, each) for each in chosen.layers_per_stage)
    return chosen.changed(recompute=recompute, recompute_blocks=counts)


def span_and_peak(program: Program) -> tuple[float, float]:
    trace = traced(program)
    return span_s(trace), peak_bytes(trace)


def traced(program: Program) -> Trace:
    return simulate_program(verify(program).wiring, NamedWork(), AskedLinks())


def computed_s(program: Program) -> float:
    """Of all devices together."""
    trace = traced(program)
    return float((trace.end_s - trace.start_s)[0, program.kinds == Kind.COMPUTE].sum())


def allocated_bytes(chosen: Plan) -> float:
    return estimate_memory(chosen, Cluster(chosen.cluster), registered()[chosen.schedule]).allocated_bytes


def test_the_first_blocks_of_a_stage_are_those_of_its_first_pieces() -> None:
    chosen = deep(3, 4)
    pieces = piece_layers(chosen.stages(), (2, 2))
    again = [(part.first_block, part.num_blocks) for part in (recomputed_layers(chosen, p) for p in pieces)]
    kept = [(part.first_block, part.num_blocks) for part in (kept_layers(chosen, p) for p in pieces)]
    assert again == [(0, 2), (2, 1), (4, 2), (6, 2)] and kept == [(2, 0), (3, 1), (6, 0), (8, 0)]
    assert [recomputes_ends(chosen, piece) for piece in pieces] == [False, False, True, True]
    assert [is_recomputed(chosen, piece) for piece in pieces] == [False, False, True, True]
    assert [is_partly_recomputed(chosen, piece) for piece in pieces] == [True, True, False, False]
    assert (
        recomputed_layers(chosen, pieces[3]).has_head
        and not recomputed_layers(chosen, pieces[0]).has_embedding
    )
    assert kept_layers(chosen, pieces[0]).has_embedding


def test_without_counts_every_stage_is_recomputed_wholly() -> None:
    chosen, anything = deep(), StageLayers(1, 6, True, True)
    assert recomputed_layers(chosen, anything) == anything and recomputes_ends(chosen, anything)
    assert kept_layers(chosen, anything).num_blocks == 0
    with pytest.raises(PlanError, match="blocks 1 to 6 are in no stage"):
        recomputed_layers(deep(3, 3), anything)


@pytest.mark.parametrize("pieces", [None, (2, 2), (4, 4)], ids=str)
def test_r_runs_the_recomputed_blocks_again_and_no_ends(pieces: tuple[int, ...] | None) -> None:
    """The last stage also has the head, the first the embedding; blocks are alike."""
    whole = lowered(plan(DEEP, pp=4, recompute="full"), None)
    block = work_of(whole, "R", 1).flops / 2  # a stage of two blocks, without ends
    for counts in ((1, 1), (3, 1), (3, 3), (0, 2)):
        program = lowered(deep(*counts), pieces)
        verify(program)
        for device, count in enumerate(counts):
            rows = [view for view in rows_named(program, "R", device) if view.microbatch == 0]
            assert sum(view.work.flops for view in rows) == pytest.approx(count * block)
            assert all(view.work.flops for view in rows)
    ends = lowered(deep(4, 4), None)
    assert work_of(ends, "R", 1).flops == work_of(ends, "F", 1).flops > 4 * block


def test_some_attention_cores_are_run_again_in_the_backward() -> None:
    def backward(count: int) -> float:
        return work_of(lowered(counted(deep(), "selective", count), None), "B", 0).flops

    assert backward(4) > backward(1) > backward(0)
    assert backward(4) - backward(0) == pytest.approx(4 * (backward(1) - backward(0)))
    assert not rows_named(lowered(deep(2, 2, recompute="selective")), "R")


@pytest.mark.parametrize("recompute", ["full", "selective", "selective_op"])
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_grow_and_bytes_shrink_from_none_to_all(name: str, recompute: str) -> None:
    """And with all blocks the program is that of a plan without counts, but for how it is written down."""
    base = plan(DEEP, pp=2, **VARIANTS[name])
    steps = [counted(base, recompute, count) for count in range(max(base.layers_per_stage) + 1)]
    everything = base.changed(recompute=recompute)
    for pieces in (None, ()):
        spans, peaks = zip(*(span_and_peak(lowered(each, pieces)) for each in steps), strict=True)
        assert list(spans) == sorted(spans)
        # what shards send may take longer than all that is computed beside it, and then the step as well
        assert computed_s(lowered(steps[0], pieces)) < computed_s(lowered(steps[-1], pieces))
        assert spans[0] < spans[-1] or name == "zero3"
        assert list(peaks) == sorted(peaks, reverse=True)
        assert span_and_peak(lowered(everything, pieces)) == (spans[-1], peaks[-1])
        assert lowered(everything, pieces).digest() == lowered(steps[-1], pieces).digest()
    sizes = [allocated_bytes(each) for each in steps]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == allocated_bytes(everything)


def test_mixed_blocks_and_experts_are_verified_and_between() -> None:
    spans = [
        span_and_peak(lowered(plan(EXPERTS, ep=2, dp=2, **choices)))[0]
        for choices in (
            {},
            {"recompute": "full", "recompute_blocks": (3,)},
            {"recompute": "full"},
        )
    ]
    assert spans == sorted(spans) and len(set(spans)) == 3


@pytest.mark.parametrize("own", [{}, OWN, {"tp": 2, "sequence_parallel": True}], ids=["stack", "own", "tp"])
def test_a_piece_keeps_what_it_does_not_make_again(own: dict[str, Any]) -> None:
    """A block makes as much as a block keeps; what the embedding gives the first one is kept."""
    chosen, plain = deep(3, 3, **own), deep(recompute="none", **own)
    values = {v.kind: v.by_index for v in lowered(chosen, None).tables.value_bytes}
    whole = [kept_bytes_per_token(plain, stage) for stage in plain.stages()]
    first, last = values[REMADE.name]
    assert [a + b for a, b in zip(values["saved"], (first, last), strict=True)] == pytest.approx(whole)
    boundary = boundary_bytes_per_token(DEEP, chosen.dtype) / (chosen.tp if chosen.sequence_parallel else 1)
    assert last - first == pytest.approx(boundary)
    alone = kept_bytes_per_token(plain, StageLayers(1, 1, False, False))
    assert last == pytest.approx(3 * alone)
    assert REMADE.name not in {v.kind for v in lowered(deep(**own), None).tables.value_bytes}


def test_sizes_of_pieces_are_those_of_their_stage() -> None:
    chosen = deep(3, 2)
    whole = [remade_bytes_per_token(chosen, stage) for stage in chosen.stages()]
    values = {v.kind: v.by_index for v in lowered(chosen, (2, 2)).tables.value_bytes}
    made, saved = values[REMADE.name], values["saved"]
    # the second piece of the last stage makes nothing, its first one everything
    assert made[0] + made[1] == pytest.approx(whole[0]) and (made[2], made[3]) == (0.0, 0.0)
    assert sum(saved[:2]) == pytest.approx(kept_bytes_per_token(chosen, chosen.stages()[0]) - whole[0])


def test_a_microbatch_in_flight_keeps_what_the_estimate_says() -> None:
    """Attention's scores of two blocks of four; of the estimate's first device two microbatches are in flight."""
    chosen = deep(2, 2, recompute="selective", attention="unfused")
    device = estimate_memory(chosen, Cluster(chosen.cluster), registered()["1f1b"]).devices[0]
    kept = kept_bytes_per_token(chosen, chosen.stages()[0])
    assert dict(device.holders)[ACTIVATIONS] == pytest.approx(2 * kept * SEQUENCE)
    ends = [kept_bytes_per_token(counted(chosen, "selective", count), chosen.stages()[0]) for count in (0, 4)]
    assert kept == pytest.approx(sum(ends) / 2)


def test_what_another_stage_sent_is_gathered_again_where_it_begins_a_recomputed_piece() -> None:
    program = lower(deep(2, 2, tp=2), registered()["1f1b"], pieces=(1, 1))
    for device, gathers in ((0, 0), (1, 1)):
        inner = inner_of(work_of(program, "R", device), "tensor parallel")
        count = {algorithm: times for (algorithm, _), times in inner.items()}
        assert count.get("all_gather", 0) == gathers and count["all_reduce"] == 2 * 2


def test_a_split_vocabulary_is_computed_once_where_blocks_are_recomputed_in_part() -> None:
    for counts, again in (((2, 2), 0), ((4, 2), 1)):
        program = lowered(deep(*counts, vocabulary="interlaced", schedule="gpipe"), None)
        assert len(inner_of(work_of(program, "R", 0), "vocabulary parallel")) == again
        assert len(inner_of(work_of(program, "R", 1), "vocabulary parallel")) == 0
    share = {op.label for op in work_of(program, "R", 0).operators} - {
        op.label for op in work_of(program, "R", 1).operators
    }
    assert "loss" in share and total_flops(work_of(program, "F", 1).operators) > 0


def test_a_stage_without_blocks_is_recomputed_as_with_all() -> None:
    chosen = plan(DEEP, pp=2, layers_per_stage=(8, 0), recompute="full", recompute_blocks=(3, 0))
    verify(lowered(chosen, None))
    assert recomputes_ends(chosen, chosen.stages()[1]) and not recomputes_ends(chosen, chosen.stages()[0])
