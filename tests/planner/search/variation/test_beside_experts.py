"""Plans whose tokens travel beside another microbatch's computes: tried where they may win, by none of them beaten, priced as
far as pairs reach, and with the further microbatch in flight."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.lowering.segment.beside_plan import EXPERTS, has_pairs
from meshwright.planner.advice.expert_words import expert_exchange
from meshwright.planner.search.plans import Plans
from meshwright.planner.search.search import BESIDE_EXPERTS, search
from meshwright.planner.space.space import space_of
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.predicted import Predicted, predict
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ModelSpec, Workload
from meshwright.specs.plan.plan import Plan

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
MODEL = ModelSpec.decoder(
    8, 4096, 32, num_kv_heads=8, intermediate_size=8192, max_sequence_length=4096, vocabulary_size=32000
).changed(architecture="mixtral", num_experts=16, num_experts_per_token=2, expert_intermediate_size=8192)
CLUSTER, WORKLOAD = Cluster("2x8xH100"), Workload(64, 4096)
FIX: dict[str, Any] = {**MIXED, "tp": 1, "cp": 1, "recompute": "none", "sharding": ("zero1", "zero2")}
CLOSE = 2e-3  # of a step: what sharding alone changes, of which not every kind is paired


def found(**choices: Any) -> Plans:
    return search(MODEL, CLUSTER, WORKLOAD, fix={**FIX, **choices.pop("fix", {})}, **choices)


def predicted(**choices: Any) -> Predicted:
    given = {**MIXED, "sharding": "zero1", "ep": 8, "microbatch_size": 1, **choices}
    return predict(Plan.of(MODEL, CLUSTER, WORKLOAD, **given), CLUSTER)


@pytest.mark.slow
def test_the_winner_is_no_slower_than_any_candidate_in_pairs() -> None:
    best, without = found(fix={"ep": 8}), found(fix={"ep": 8, "overlap": ("reduce", "gather")})
    assert "ep" in best[0].plan.overlap and best[0].step.value < without[0].step.value
    assert best.varied[BESIDE_EXPERTS] == sum("ep" in each.plan.overlap for each in best) > 0
    space, num_paired = space_of(MODEL, CLUSTER, WORKLOAD, fix={**FIX, "ep": 8}), 0
    for plan in map(space.plan, range(len(space))):
        if plan.num_microbatches > 1 and has_pairs(plan, registered()[plan.schedule]):
            each = predict(plan.changed(overlap=(*plan.overlap, "ep")), CLUSTER)
            if each.rejected() is None:
                num_paired += 1
                assert best[0].step.value <= each.step.value * (1 + CLOSE), each
    assert num_paired >= 3


def test_what_is_decided_is_not_varied_and_dense_models_are_not_asked() -> None:
    fixed = found(fix={"ep": 8, "pp": 1, "overlap": ("reduce", "gather")}, num_simulated=2)
    assert BESIDE_EXPERTS not in fixed.varied and not any("ep" in each.plan.overlap for each in fixed)
    alone = found(fix={"ep": 1, "pp": 1, "microbatch_size": 1}, num_simulated=2)
    assert BESIDE_EXPERTS not in alone.varied


def test_what_fits_with_a_risk_is_among_them() -> None:
    plans = found(fix={"ep": 8, "pp": 1, "microbatch_size": 1}, num_simulated=2, risk=0.1)
    assert "ep" in plans[0].plan.overlap and plans[0].fit_probability() >= 0.9


def test_only_pairs_hide() -> None:
    """On one stage all but the first forward and the last backward, of which each sends as much."""
    told, bare = predicted(overlap=("reduce", "ep")), predicted()
    num = told.plan.num_microbatches
    assert num > 1
    kinds = {
        work.name: {each.beside for each in work.inner if each.label == EXPERTS}
        for work in bare.program.tables.works
    }
    assert kinds["F"] == kinds["B"] == {""}
    program = told.program
    beside = [
        any(each.label == EXPERTS and each.beside for each in program.tables.works[work].inner)
        if work >= 0
        else None
        for work in program.columns.work.tolist()
    ]
    names = [program.tables.effects[effect].name for effect in program.columns.effect.tolist()]
    pieces = sum(name == "F" for name in names) // num
    for name in ("F", "B"):
        own = [is_beside for n, is_beside in zip(names, beside, strict=True) if n == name]
        assert own.count(False) == pieces and own.count(True) == pieces * (num - 1)
    sent, whole = expert_exchange(told), expert_exchange(bare)
    assert sent is not None and whole is not None and sent.seconds == pytest.approx(whole.seconds)
    assert 0.0 < sent.hidden_s <= sent.seconds * (num - 1) / num * (1 + 1e-9)


@pytest.mark.parametrize(
    ("schedule", "pp", "more"), [("1f1b", 1, 1), ("interleaved_1f1b", 2, 1), ("dualpipe_v", 2, 0)]
)
def test_memory_has_the_further_microbatch(schedule: str, pp: int, more: int) -> None:
    told, bare = (
        predicted(pp=pp, schedule=schedule, overlap=overlap).memory
        for overlap in (("reduce", "ep"), ("reduce",))
    )
    assert told is not None and bare is not None
    difference = told.allocated_bytes - bare.allocated_bytes
    assert (difference > 0) == (more > 0) and difference >= 0
    assert estimate_memory(predicted().plan, CLUSTER, registered()["1f1b"]).allocated_bytes > 0


@pytest.mark.parametrize(("schedule", "pp"), [("1f1b", 1), ("interleaved_1f1b", 2), ("dualpipe_v", 2)])
def test_composed_prices_and_rows_agree_that_it_is_shorter(schedule: str, pp: int) -> None:
    """And that no more is saved than all-to-alls take."""
    for in_segments in (False, True):
        spans = []
        for overlap in (("reduce",), ("reduce", "ep")):
            plan = predicted(pp=pp, schedule=schedule, overlap=overlap).plan
            each = predict(plan, CLUSTER, in_segments=in_segments)
            spans.append(each.step.value)
        sent = expert_exchange(predicted(pp=pp, schedule=schedule))
        assert sent is not None
        assert 0.0 < spans[0] - spans[1] < 1.05 * sent.seconds, (in_segments, spans)
