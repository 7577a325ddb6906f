"""The search space: whole, without what cannot be, and one message for what contradicts itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.planner.space.axis import AXES
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.description import describe
from meshwright.prediction.predicted import predict
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ModelSpec, Workload, load_model
from meshwright.specs.error import MeshwrightError, PlanError
from meshwright.specs.sequence.context_parallel import ASKED_FOR

MODEL = ModelSpec.decoder(8, 1024, 16, num_kv_heads=16, intermediate_size=4096, vocabulary_size=1024)


def space(cluster: str = "2x8xH100", batch: int = 32, sequence: int = 4096, **choices: Any) -> Space:
    return space_of(choices.pop("model", MODEL), Cluster(cluster), Workload(batch, sequence), **choices)


def test_every_candidate_is_a_plan_and_none_comes_twice() -> None:
    found = space(sequence=16384, microbatch_sizes=(1, 2))
    rows = np.stack([getattr(found, name) for name in AXES], axis=1)
    assert len(np.unique(rows, axis=0)) == len(found) > 500
    for number in range(0, len(found), len(found) // 300):
        plan = found.plan(number)
        assert plan.num_devices == plan.world_size == 16
        assert plan.num_microbatches == found.num_microbatches[number]
        assert plan.expert_tp == found.expert_tp[number]
        assert plan.sharding != "zero2" or plan.pp == 1
        assert all(plan.layers_per_stage[1:-1]) and sum(plan.layers_per_stage) == 8


def test_degrees_divide_what_they_must() -> None:
    found = space(sequence=16384)
    assert set(found.tp) == {1, 2, 4, 8} and set(found.cp) == {1, 2, 4, 8, 16}
    assert set(found.pp) == {1, 2, 4, 8} and set(found.dp) == {1, 2, 4, 8, 16}
    assert not (found.sequence_parallel & (found.tp == 1)).any()
    for number, name in enumerate(found.names["schedule"]):
        chunks = set(found.num_chunks[found.schedule == number].tolist())
        assert chunks and all(registered()[name].takes_chunks(count) for count in chunks), name
        assert (registered()[name].num_chunks > 1) == (min(chunks) > 1), name
    assert set(found.names["schedule"]) == {name for name, one in registered().items() if one.num_copies == 1}
    assert set(space(sequence=1024).cp) == {1}


def test_ulysses_is_tried_where_it_divides_heads() -> None:
    every = space(sequence=65536, model=ModelSpec.decoder(8, 1024, 4), microbatch_sizes=(1,))
    found = space(
        sequence=65536, model=ModelSpec.decoder(8, 1024, 4), microbatch_sizes=(1,), fix={"context": "ulysses"}
    )
    assert (every.cp * every.tp).max() > 4 and set((found.cp * found.tp).tolist()) == {1, 2, 4}
    assert {found.plan(number).context for number in range(0, len(found), 7)} == {"ulysses"}
    with pytest.raises(PlanError, match="no plan"):
        space(sequence=65536, model=ModelSpec.decoder(8, 1024, 4), fix={"context": "ulysses", "cp": 8})


def test_every_kind_of_context_parallelism_is_tried_that_may_be_the_fastest() -> None:
    def kinds(**choices: Any) -> set[tuple[Any, ...]]:
        found = space(sequence=choices.pop("sequence", 16384), microbatch_sizes=(1,), **choices)
        plans = [found.plan(n) for n in range(len(found))]
        return {
            (p.cp, p.context, *filter(None, (p.token_layout, p.ulysses if p.ulysses > 1 else 0)))
            for p in plans
        }

    three = {"ring", "all_gather", "ulysses"}
    # of two key-value heads a device Ulysses over four would repeat: two exchange them inside a ring of two
    assert kinds(fix={"cp": (1, 4)}) == {(1, "ring"), (4, "ring", 2), *((4, kind) for kind in three)}
    assert kinds(fix={"cp": 4}, forbid=("ring", "ulysses")) == {(4, "all_gather")}
    assert kinds(fix={"cp": 4, "context": ("ring", "ulysses")}) == {(4, "ring"), (4, "ulysses")}
    contiguous = {"cp": 4, "context": "ring", "token_layout": "contiguous"}
    assert kinds(fix=contiguous) == {(4, "ring", "contiguous")}
    of_both = {"cp": (2, 4), "token_layout": ("zigzag", "stripe"), "context": "all_gather"}
    assert kinds(fix=of_both) == {(cp, "all_gather", how) for cp in (2, 4) for how in ("zigzag", "stripe")}
    # stripes where no zigzag divides
    assert kinds(sequence=4100, fix={"cp": 4}) == {
        (4, "ring", "stripe"),
        (4, "ring", 2),
        (4, "all_gather", "stripe"),
        (4, "ulysses"),
    }


def test_ulysses_inside_a_ring_is_tried_where_it_is_asked_for() -> None:
    found = space(sequence=16384, microbatch_sizes=(1,), fix={"cp": (2, 4), "ulysses": 2})
    plans = [found.plan(number) for number in range(len(found))]
    assert {(plan.cp, plan.context, plan.ulysses) for plan in plans} == {(4, "ring", 2)}
    assert "ulysses" not in {space(sequence=16384, forbid=("ulysses",)).plan(0).context}
    with pytest.raises(PlanError, match="below cp that divides it"):
        space(sequence=16384, fix={"cp": 2, "ulysses": 2})


def test_a_contiguous_ring_is_never_faster_than_a_zigzag_nor_smaller() -> None:
    found = space(
        sequence=16384, microbatch_sizes=(1, 2), fix={"context": "ring"}, forbid=("sharding_degree",)
    )
    with_rings = np.flatnonzero(found.cp > 1)
    for number in with_rings[:: len(with_rings) // 12].tolist():
        zigzag = predict(found.plan(number), found.cluster)
        other = predict(zigzag.plan.changed(token_layout="contiguous"), found.cluster)
        assert zigzag.step.value <= other.step.value * (1 + 1e-12)
        assert zigzag.peak_bytes == other.peak_bytes and zigzag.bound_bytes == other.bound_bytes


def test_experts_are_divided_along_data_parallel_devices() -> None:
    found = space(model=load_model("mixtral-8x7b"), microbatch_sizes=(1,))
    as_attention = found.taken(found.etp == 0)
    assert set(found.ep) == set(as_attention.ep) == {1, 2, 4, 8}
    assert (as_attention.dp * as_attention.cp % as_attention.ep == 0).all()
    assert (as_attention.expert_tp == as_attention.tp).all()
    for number in range(0, len(found), 11):
        found.plan(number)


def test_whole_experts_are_tried_where_they_fill_tensor_parallel_devices() -> None:
    found = space(model=load_model("mixtral-8x7b"), microbatch_sizes=(1,), sequence=16384)
    whole = found.taken(found.etp > 0)
    assert set(whole.etp) == {1} and (whole.expert_tp == 1).all()
    assert set(zip(whole.tp.tolist(), whole.ep.tolist(), strict=True)) == {
        *((2, ep) for ep in (2, 4, 8)),
        *((4, ep) for ep in (4, 8)),
        (8, 8),
    }
    # eight experts on tp 4 x cp 4 lie along a part of cp
    assert ((whole.tp == 4) & (whole.cp == 4) & (whole.ep == 8)).any()
    for number in range(0, len(whole), max(1, len(whole) // 100)):
        plan = whole.plan(number)
        assert plan.expert_tp == 1 and f"ep={plan.ep}" in describe(plan)
        assert plan.has_own_expert_tp == ("etp=1" in describe(plan)) == (plan.dp * plan.cp % plan.ep == 0)
    assert not space(microbatch_sizes=(1,), sequence=16384).etp.any()  # nobody folds what is not there


def test_how_experts_are_divided_is_fixed_and_forbidden_as_other_axes_are() -> None:
    job: dict[str, Any] = {"model": load_model("mixtral-8x7b"), "microbatch_sizes": (1,)}
    free = space(**job)
    assert not space(**job, forbid=("etp",)).etp.any()
    as_attention, whole = space(**job, fix={"etp": 0}), space(**job, fix={"etp": 1})
    assert len(as_attention) == (free.etp == 0).sum() and (whole.expert_tp == 1).all()
    assert 1 in whole.ep[whole.tp == 8] and set(whole.tp) == set(
        free.tp
    )  # asked for, all that fold are tried
    wider = space(**job, fix={"etp": (1, 4), "tp": 2, "ep": (1, 2)})
    pairs = set(zip(wider.expert_tp.tolist(), wider.ep.tolist(), strict=True))
    assert pairs == {(1, 1), (1, 2), (4, 1), (4, 2)}
    rows = np.stack([getattr(wider, name) for name in AXES if name != "etp"] + [wider.expert_tp], axis=1)
    assert len(np.unique(rows, axis=0)) == len(wider)  # nothing is tried twice
    with pytest.raises(PlanError, match="etp is both fixed and forbidden"):
        space(**job, fix={"etp": 1}, forbid=("etp",))
    with pytest.raises(PlanError, match="etp is -1"):
        space(**job, fix={"etp": -1})


def test_experts_fill_the_context_parallel_devices_inside_them() -> None:
    found = space("4x8xH100", sequence=16384, model=load_model("mixtral-8x7b"), microbatch_sizes=(1,))
    found = found.taken(found.etp == 0)
    inside = found.ep[(found.cp > 1) & (found.ep > 1)] % found.cp[(found.cp > 1) & (found.ep > 1)]
    assert len(inside) and not inside.any()
    along_tp = space(model=load_model("mixtral-8x7b"), fix={"ep": 8, "tp": 8, "pp": 2, "microbatch_size": 1})
    assert set(along_tp.expert_tp) == {1}
    with pytest.raises(PlanError, match="ep=3"):
        space(model=load_model("mixtral-8x7b"), fix={"ep": 3})


def test_what_is_fixed_stays_and_what_is_forbidden_goes() -> None:
    fixed = space(fix={"tp": 4, "pp": 2, "recompute": "full", "dtype": "bfloat16"})
    assert set(fixed.tp) == {4} and set(fixed.pp) == {2} and fixed.plan(0).dtype == "bfloat16"
    assert {fixed.plan(n).recompute for n in range(len(fixed))} == {"full"}
    free = space(forbid=("pp", "zero3", "full"))
    chosen = [free.plan(n) for n in range(len(free))]
    assert {plan.pp for plan in chosen} == {1}
    assert {plan.sharding for plan in chosen} == {"none", "zero1", "zero2"}
    assert {plan.recompute for plan in chosen} == {"none", "selective", "selective_op"}
    assert set(space(forbid=("sequence_parallel", "tp")).tp) == {1}


def test_a_tensor_degree_beyond_a_node_has_to_be_asked_for() -> None:
    assert space(fix={"tp": 16}).tp.min() == 16 and space().tp.max() == 8


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"fix": {"tp": 3}}, "tensor-parallel degree 3|does not divide"),
        ({"fix": {"tp": 8, "pp": 4}}, "does not divide the 16 devices"),
        ({"fix": {"tp": 1, "pp": 1, "dp": 4, "cp": 1}}, "does not divide the 16 devices"),
        ({"fix": {"dp": 16, "microbatch_size": 4}}, "not a multiple of dp x microbatch_size = 64"),
        ({"batch": 7, "fix": {"dp": 16}}, "not a multiple"),
        ({"batch": 7, "fix": {"pp": 1, "tp": 2}}, "no plan puts a batch of 7"),
        ({"fix": {"pp": 16}}, "16 stages for the 8 layers"),
        ({"fix": {"sharding": ("zero3", "zero9")}}, "does not try"),
        ({"fix": {"cp": 2}, "forbid": ("cp",)}, "both fixed and forbidden"),
        ({"fix": {"context": "ulysses"}, "forbid": ("ulysses",)}, "both fixed and forbidden"),
        ({"fix": {"context": "spiral"}}, "does not try"),
        ({"fix": {"cp": 8, "ulysses": 3}}, r"ulysses is 3 with cp\(8\)"),
        ({"fix": {"sharding": "zero3"}, "forbid": ("zero3",)}, "both fixed and forbidden"),
        ({"fix": {"sharding": "zero2", "pp": 2}}, "no plan puts"),
        ({"fix": {"schedule": "wave"}}, "does not try"),
        ({"fix": {"wings": 2}}, "no 'wings' to fix"),
        ({"fix": {"tp": "many"}}, "whole number"),
        ({"forbid": ("wings",)}, "no 'wings' to forbid"),
        ({"forbid": ("none",)}, "no 'none' to forbid"),
        ({"fix": {"recompute_blocks": 1}, "forbid": ("recompute_blocks",)}, "both fixed and forbidden"),
        ({"fix": {"cp": 2}, "sequence": 4095}, "4095 tokens over cp"),
        ({"microbatch_sizes": (0, 1)}, "microbatch sizes"),
        ({"microbatch_sizes": ()}, "microbatch sizes"),
    ],
)
def test_contradictions_get_one_message(choices: dict[str, Any], words: str) -> None:
    with pytest.raises(MeshwrightError, match=words) as caught:
        space(**choices)
    assert caught.value.exit_code == 2


def test_the_message_says_what_was_fixed_and_forbidden() -> None:
    with pytest.raises(PlanError, match="tp=8 fixed and dp forbidden"):
        space(fix={"tp": 8}, forbid=("dp",), batch=32, model=MODEL, cluster="64x8xH100")


def test_several_values_may_be_allowed_of_an_axis() -> None:
    found = space(fix={"tp": (2, 4), "schedule": ("1f1b", "zb_h1"), "float8": ("", "tensorwise"), "pp": 2})
    assert set(found.tp) == {2, 4} and set(found.float8) == {0, 1}
    assert {found.names["schedule"][number] for number in set(found.schedule)} == {"1f1b", "zb_h1"}
    assert set(space(fix={"pp": 2}).float8) == {0}


def test_orders_of_the_mesh_put_devices_elsewhere_and_matter_on_several_nodes_only() -> None:
    found = space(
        fix={"tp": 2, "pp": 2, "cp": 2, "microbatch_size": 1, "recompute": "none", "sharding": "none"},
        sequence=16384,
    )
    placed = {found.plan(n).mesh_order: tuple(found.plan(n).device_at(pp=p, dp=d, cp=c, tp=t)
              for p in (0, 1) for d in (0, 1) for c in (0, 1) for t in (0, 1)) for n in range(len(found))}  # fmt: skip
    assert len(placed) == 6 == len(set(placed.values()))
    for number in range(len(found)):
        plan = found.plan(number)
        for axis in ("pp", "dp", "cp", "tp"):
            assert found.strides[axis][number] == plan.device_at(**{axis: 1}) - plan.device_at()
    assert set(space("8xH100").mesh_order) == {0}


def test_some_blocks_of_a_stage_may_be_run_again() -> None:
    found = space(
        fix={
            "pp": 2,
            "tp": 8,
            "recompute": "full",
            "microbatch_size": 1,
            "sharding": "none",
            "schedule": "1f1b",
        }
    )
    counts = {found.plan(n).recompute_blocks for n in range(len(found))}
    assert counts == {(), (1, 1), (2, 2), (3, 3)}


def test_the_ends_may_count_as_layers() -> None:
    model = ModelSpec.decoder(14, 1024, 16, num_kv_heads=16, intermediate_size=4096, vocabulary_size=1024)
    found = space(model=model, fix={"pp": 4, "tp": 4, "num_chunks": 4, "microbatch_size": 1})
    assert {found.plan(n).layers_per_stage for n in range(len(found))} == {(0, *([1] * 14), 0)}


def test_an_order_that_is_fixed_is_taken_also_where_it_puts_no_device_elsewhere() -> None:
    one_node = space("1x8xH100", fix={"mesh_order": "dp-pp-cp-tp", "pp": 2, "tp": 2})
    assert len(one_node) and set(one_node.mesh_order) == {one_node.names["mesh_order"].index("dp-pp-cp-tp")}
    whole = space("2x8xH100", fix={"mesh_order": ("dp", "pp", "cp", "tp"), "pp": 2})
    assert whole.plan(0).mesh_order == ("dp", "pp", "cp", "tp")


def test_an_order_that_is_fixed_is_taken_also_in_a_coarse_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.planner.space.space.MOST_CANDIDATES", 1)
    found = space("2x8xH100", fix={"mesh_order": "cp-pp-dp-tp"})
    assert "other orders of the mesh" in found.left_out and len(found)


def test_what_is_coarsest_is_tried_where_too_many_candidates_have_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job: dict[str, Any] = {"model": load_model("mixtral-8x7b"), "fix": {"cp": 1}}
    whole = space("2x8xH100", **job)
    rows = space("2x8xH100", **job, capacity_bytes=80 * 10**9)
    assert len(rows) < len(whole)
    monkeypatch.setattr("meshwright.planner.space.space.MOST_CANDIDATES", len(rows) // 4)
    found = space("2x8xH100", **job, capacity_bytes=80 * 10**9)
    assert 0 < len(found) < len(rows) and "in counts other than 1, 2, 4 and 8" in found.left_out
    assert {16, 3} & {*whole.microbatch_size, *whole.num_chunks}
    assert {*found.microbatch_size, *found.num_chunks} <= {1, 2, 4, 8}
    assert (found.sequence_parallel == (found.tp > 1)).all() and set(found.tp) == set(whole.tp)
    asked = {**job["fix"], "sequence_parallel": False, "microbatch_size": 16, "num_chunks": (1, 16)}
    monkeypatch.setattr("meshwright.planner.space.space.MOST_CANDIDATES", 1)
    told = space("2x8xH100", model=job["model"], fix=asked)
    assert "tensor parallelism without sequence parallelism" in told.left_out
    assert not told.sequence_parallel.any() and set(told.microbatch_size) == {16} and 16 in told.num_chunks


def test_of_alternatives_those_that_cannot_be_are_left_out() -> None:
    odd = ModelSpec.decoder(8, 1024, 16, num_kv_heads=16, intermediate_size=4096, vocabulary_size=1023)
    assert set(space(model=odd, fix={"tp": (1, 2, 3)}).tp) == {1}
    assert set(space(fix={"tp": [1, 2, 3]}).tp) == {1, 2}


@pytest.mark.parametrize("blocks", range(1, 20))
def test_any_number_of_recomputed_blocks_may_be_asked_for(blocks: int) -> None:
    """Otherwise only some numbers of a stage's twenty are tried."""
    model = ModelSpec.decoder(20, 1024, 16, num_kv_heads=16, intermediate_size=4096, vocabulary_size=1024)
    found = space(model=model, fix={"recompute_blocks": blocks, "pp": 1, "tp": 8})
    assert {found.plan(n).recompute_blocks for n in range(len(found))} == {(blocks,)}


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_any_number_of_devices_may_be_asked_to_share_a_copy(degree: int) -> None:
    found = space(fix={"sharding_degree": degree, "tp": 1, "cp": 1, "pp": 1})
    assert set(found.sharding_degree) == {degree} and set(found.dp) == {16}
    assert {found.plan(n).sharing_degree for n in range(len(found))} == {degree}


def test_a_schedule_with_copies_of_stages_is_not_ranked() -> None:
    with pytest.raises(PlanError, match="has every stage on 2 devices: the search counts one copy"):
        space(fix={"schedule": "dualpipe"})


def test_kinds_that_have_few_uses_are_tried_where_they_are_named() -> None:
    """A search takes no queries that travel and no whole rows of scores unless it is asked to; of the latter none of a part
    is recomputed."""
    free = space(sequence=16384, microbatch_sizes=(1,))
    assert not {free.plan(number).context for number in range(len(free))} & set(ASKED_FOR)
    asked = space(sequence=16384, microbatch_sizes=(1,), fix={"context": ASKED_FOR, "cp": 2})
    plans = [asked.plan(number) for number in range(len(asked))]
    assert {plan.context for plan in plans} == set(ASKED_FOR)
    assert {plan.recompute for plan in plans} == {"none", "full"}
