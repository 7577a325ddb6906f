"""Asking for a part of a model to train: what it becomes, and what cannot be asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.api.exchange.adapting import TrainedPart
from meshwright.specs import Cluster, ModelSpec, Plan, SpecError, Workload
from meshwright.specs.model.adaptation import LORA_TARGETS

MODEL = ModelSpec.decoder(2, 16, 2, vocabulary_size=32, max_sequence_length=8)


def test_a_rank_alone_is_of_all_matrices() -> None:
    found = TrainedPart(4).of_model(MODEL)
    assert found == replace(MODEL, lora_rank=4, lora_targets=LORA_TARGETS)
    assert found.base == MODEL and found.num_trained_parameters < MODEL.num_parameters / 2


def test_patterns_alone_freeze_the_rest() -> None:
    assert TrainedPart(trained=("head.*",)).of_model(MODEL) == replace(MODEL, trained=("head.*",))


def test_nothing_asked_for_is_the_whole_model() -> None:
    assert TrainedPart().of_model(MODEL) is MODEL and not TrainedPart().is_asked


def test_the_same_part_may_be_said_twice() -> None:
    part = TrainedPart(4, 8.0, ("qkv",))
    once = part.of_model(MODEL)
    assert part.of_model(once) == once
    with pytest.raises(SpecError, match="says which part trains"):
        TrainedPart(8).of_model(once)


def test_a_plan_is_for_the_part(tmp_path: Path) -> None:
    plan = Plan.of(MODEL, Cluster("2xcpu"), Workload(4, 8), dp=2)
    plan.save(tmp_path / "plan.toml")
    found = TrainedPart(2, lora_targets=("down",)).of_plan(tmp_path / "plan.toml")
    assert found == replace(plan, model=replace(MODEL, lora_rank=2, lora_targets=("down",)))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (TrainedPart(lora_targets=("qkv",)), "without their rank"),
        (TrainedPart(lora_alpha=2.0), "without their rank"),
        (TrainedPart(2, lora_targets=("q_proj",)), "q_proj"),
        (TrainedPart(trained=("nothing.*",)), "nothing"),
    ],
)
def test_what_cannot_be_is_said(part: TrainedPart, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        part.of_model(MODEL)


def test_beside_something_with_its_own_model_it_is_refused() -> None:
    TrainedPart().refuse("--like")
    with pytest.raises(SpecError, match="beside --like"):
        TrainedPart(2).refuse("--like")
