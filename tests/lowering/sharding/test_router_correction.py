"""Counts of tokens as rows: what waits for them, over whom they are summed, and who has no corrections to step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.lowering.plans import EXPERTS, plan
from tests.planned_case import DEEPSEEK, ENCODER_EXPERTS

from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.core_vocabulary import ALL_TOKENS, OWN_TOKENS
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.lowering.lower import lower
from meshwright.lowering.sharding.router_correction import CorrectRouters, correction_rate
from meshwright.schedules import registered
from meshwright.specs import PassOption, PlanError
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import MeshwrightError, ProgramError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.recipe import Recipe

CORRECTED, CLIPPED = PassOption("correct_routers", {"rate": 0.01}), PassOption("clip_gradients")


def lowered(schedule: str = "1f1b", in_segments: bool = False, **choices: Any) -> Program:
    given = {"model": DEEPSEEK, "passes": (CORRECTED,), **choices}
    return lower(plan(schedule=schedule, **given), registered()[schedule], in_segments=in_segments)


@pytest.mark.parametrize("in_segments", [False, True])
@pytest.mark.parametrize(
    "choices",
    [
        {"pp": 2, "dp": 2, "ep": 2},
        {"tp": 2, "sequence_parallel": True, "passes": (CLIPPED, CORRECTED)},
        {"pp": 2, "schedule": "dualpipe", "batch": 8},
        {"dp": 2, "sharding": "zero3"},
        {},
    ],
    ids=str,
)
def test_every_step_reads_the_sum_over_all_devices(choices: dict[str, Any], in_segments: bool) -> None:
    program = lowered(in_segments=in_segments, **choices)
    for host in HOSTS:
        verify(program, host)
    t, c = program.tables, program.columns
    axes = {axis.name for axis in program.axes if axis.size > 1}
    wanted = ALL_TOKENS if axes else OWN_TOKENS
    steps = [effect for effect in (t.effects[e] for e in set(c.effect.tolist())) if effect.name == "STEP"]
    assert all(wanted.kind in {p.kind for p in effect.reads} for effect in steps)
    summing = [e for e, effect in enumerate(t.effects) if effect.name == "REDUCE_TOKENS"]
    rows = np.flatnonzero(np.isin(c.effect, summing))
    assert len(rows) == (program.num_lists if axes else 0)
    assert all({*t.exchanges[number].axes} == axes for number in c.exchange[rows].tolist())
    sizes = {row.kind: row.by_index for row in t.value_bytes}
    assert sizes[OWN_TOKENS.kind] == (8.0 * 3 * 6,)  # three layers of six experts
    assert from_text(to_text(program)).digest() == program.digest()


def test_a_sum_left_out_is_found() -> None:
    program = lowered(dp=2)
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    kept = np.flatnonzero(names != "REDUCE_TOKENS")
    with pytest.raises(ProgramError, match=ALL_TOKENS.kind):
        verify(program.reordered(kept, np.array([0, len(kept)])))


def test_plans_without_it_are_as_they_were() -> None:
    program = lower(plan(DEEPSEEK, dp=2), registered()["1f1b"])
    assert not any("TOKENS" in effect.name for effect in program.tables.effects)
    assert correction_rate(plan(DEEPSEEK, dp=2)) == 0.0
    assert correction_rate(plan(DEEPSEEK, dp=2, passes=(CORRECTED,))) == 0.01
    assert correction_rate(plan(DEEPSEEK, passes=(PassOption("correct_routers"),))) == 0.001


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (EXPERTS, "has none"),
        (ENCODER_EXPERTS.changed(router_scores="sigmoid", has_router_correction=True), "encoder"),
        (replace(DEEPSEEK, trained=("head.*",)), "frozen"),
    ],
    ids=["no correction", "encoder", "frozen"],
)
def test_models_without_corrections_are_refused(model: ModelSpec, words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        lowered(model=model)
    assert caught.value.allowed and caught.value.next


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match="above 0"):
        lowered(passes=(PassOption("correct_routers", {"rate": 0.0}),))
    with pytest.raises(MeshwrightError, match="at rate -1"):
        Recipe(router_bias_update_rate=-1.0)
    with pytest.raises(ProgramError, match="nothing steps"):
        CorrectRouters()(lower(plan(DEEPSEEK), registered()["1f1b"], step=False))
    with pytest.raises(MeshwrightError, match="corrections of routers"):
        TrainingConfig(
            DEEPSEEK, (4,), 8, source=RANDOM.__class__("random", modules="mine.py:make"), correction_rate=0.1
        )
