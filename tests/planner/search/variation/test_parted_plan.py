"""Parted plans: cut where exchanges inside layers are long, by none of what could be cut beaten, and not tried in vain."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planner.search.plans import Plans
from meshwright.planner.search.search import TOKEN_PARTS, search
from meshwright.planner.search.variation.parted_plan import OTHERS, halves, recut
from meshwright.planner.space.space import space_of
from meshwright.prediction.composition import is_in_segments
from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster, ModelSpec, Workload
from meshwright.specs.error import PlanError
from meshwright.specs.plan.token_part import parts_of_microbatch

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
MODEL = ModelSpec.decoder(
    4, 4096, 32, num_kv_heads=32, intermediate_size=14336, max_sequence_length=16384, vocabulary_size=32000
)
# (cluster, global batch, sequence, fixed): links between nodes are slow, and those inside a node beside large products
JOBS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "a node": ("8xH100", 16, 4096, {"tp": 8}),
    "slow links": ("2x2xA100-80", 12, 2048, {"tp": 4, "recompute": "none"}),
    "heads": ("2x8xA100-80", 8, 4096, {"cp": 16, "context": "ulysses", "recompute": "none"}),
}
CLOSE = 1e-3  # of a step: what sharding alone changes, of which not every kind is cut


def found(name: str, **choices: Any) -> Plans:
    cluster, batch, sequence, fix = JOBS[name]
    fix = {**MIXED, **fix, **choices.pop("fix", {})}
    return search(MODEL, Cluster(cluster), Workload(batch, sequence), fix=fix, **choices)


@pytest.mark.parametrize("name", JOBS)
def test_the_winner_is_no_slower_than_any_candidate_cut_in_two(name: str) -> None:
    cluster, batch, sequence, fix = JOBS[name]
    where, best, whole = Cluster(cluster), found(name), found(name, forbid=("token_parts",))
    assert best[0].plan.has_parts and best[0].level == "segments"
    assert best[0].step.value < 0.99 * whole[0].step.value and not any(each.plan.has_parts for each in whole)
    assert best.varied[TOKEN_PARTS] == sum(each.plan.has_parts for each in best) > 0
    space, num_cut = space_of(MODEL, where, Workload(batch, sequence), fix={**MIXED, **fix}), 0
    for plan in map(space.plan, range(len(space))):
        if plan.microbatch_size > 1 and is_in_segments(plan):
            each = predict(plan.changed(token_parts=halves(plan.microbatch_size)), where)
            if each.rejected() is None:
                num_cut += 1
                assert best[0].step.value <= each.step.value * (1 + CLOSE), each
    assert num_cut >= 3


def test_what_is_decided_is_not_varied() -> None:
    for plans in (found("a node", fix={"token_parts": 1}), found("a node", forbid=("token_parts",))):
        assert TOKEN_PARTS not in plans.varied and not any(each.plan.has_parts for each in plans)
    fixed = found("a node", fix={"token_parts": "3:1"})
    assert {each.plan.token_parts for each in fixed} == {"3:1"} and TOKEN_PARTS not in fixed.varied
    with pytest.raises(PlanError, match="token_parts is both fixed and forbidden"):
        found("a node", fix={"token_parts": 2}, forbid=("token_parts",))


def test_sequences_are_cut_where_parts_are_to_be_of_them() -> None:
    plans = found("a node", fix={"parts_of": "sequence", "microbatch_size": 1, "recompute": "none"})
    cut = [each for each in plans if each.plan.has_parts]
    assert cut and plans.varied[TOKEN_PARTS] == len(cut)
    assert all(part.num_tokens < 4096 for each in cut for part in each.plan.parts)


def test_nothing_is_cut_where_nothing_can_be_gained() -> None:
    job = (MODEL, Cluster("8xH100"), Workload(16, 4096))
    alone = search(*job, fix={**MIXED, "tp": 1, "cp": 1, "pp": 1})
    assert alone.varied[TOKEN_PARTS] == 0 and not any(each.plan.has_parts for each in alone)
    ring = search(
        *job, fix={**MIXED, "cp": 8, "context": "ring"}
    )  # rows do not say it as measured steps took it
    assert ring.varied[TOKEN_PARTS] == 0


@pytest.mark.parametrize("size", [2, 3, 4, 5, 12])
def test_halves_and_other_parts_have_whole_samples(size: int) -> None:
    first, second = (part.num_samples for part in parts_of_microbatch(halves(size), "samples", size, 128))
    assert first + second == size and 0 <= first - second <= 1
    job = (MODEL, Cluster("1xH100"), Workload(size, 128))
    plan = space_of(*job, fix={**MIXED, "microbatch_size": size}).plan(0)
    others = {each.token_parts for each in recut(plan.changed(token_parts=halves(size)))}
    assert others == {parts for parts in OTHERS if size % (4 if parts != "2:1" else 3) == 0} - {halves(size)}
