"""Training whose sequences are in groups that change by step: the same numbers by any grouping, and after any stop."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.executor.token_data import shards_of

from meshwright import api, catalog
from meshwright.api.trainings.training import Training
from meshwright.executor.job.pool import Pool
from meshwright.specs import Cluster, ModelSpec, Plan, PlanError, SpecError, Workload
from meshwright.specs.sequence.static_groups import STATIC
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.source import Source

CONTEXT, STEPS = 48, 4
MODEL = ModelSpec.decoder(2, 32, 2, max_sequence_length=CONTEXT, vocabulary_size=100, name="small")
SAME = 1e-9  # of losses in float64 behind a few steps of AdamW


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one token to three contexts."""
    drawn = random.Random(5)
    lengths = [1 + min(3 * CONTEXT, int(drawn.lognormvariate(3, 1))) for _ in range(120)]
    documents = [[1 + drawn.randrange(97) for _ in range(length)] for length in lengths]
    return shards_of(tmp_path_factory.mktemp("grouped"), documents).folder


def trained(
    shards: Path, groups: str, pool: Pool, steps: int = STEPS, sharding: str = "none", **given: Any
) -> Training:
    plan = Plan.of(
        MODEL,
        Cluster.detect(4),
        Workload(8, CONTEXT),
        dp=4,
        microbatch_size=1,
        dtype="float64",
        sharding=sharding,
    )
    return api.run_training(
        plan, source=Source(shards), iterations=steps, sequence_groups=groups, device="cpu", pool=pool,
        measures_memory=False, **given,
    )  # fmt: skip


def test_any_groups_give_the_same_losses(shards: Path, gloo_pool: Pool) -> None:
    one, two, whole = (trained(shards, f"static(degree={degree})", gloo_pool) for degree in (1, 2, 4))
    for other in (two, whole):
        assert other.result.losses == pytest.approx(one.result.losses, rel=SAME)
        assert [it.tokens for it in other.iterations] == [it.tokens for it in one.iterations]
    assert len({it.tokens for it in one.iterations}) > 1  # of other lengths every step
    assert all(step.groups.endswith("x4") for step in whole.metrics)
    assert all(step.predicted_s > 0 and step.seconds > 0 for step in whole.metrics)
    assert len({step.predicted_s for step in whole.metrics}) > 1
    # what is set beside the measured step is the last one
    assert whole.trace is not None and whole.predicted.digest == whole.trace.digest


@pytest.mark.slow
def test_state_may_be_divided(shards: Path, gloo_pool: Pool) -> None:
    name = "static(adapts=True)"
    whole, divided = (trained(shards, name, gloo_pool, 3, sharding) for sharding in ("none", "zero1"))
    assert divided.result.losses == pytest.approx(whole.result.losses, rel=SAME)


@pytest.mark.parametrize("name", [name for name in catalog.slot_names("sequence_groups") if name != STATIC])
def test_every_algorithm_trains_the_same(name: str, shards: Path, gloo_pool: Pool) -> None:
    found, expected = (trained(shards, each, gloo_pool, 2) for each in (name, STATIC))
    assert found.result.losses == pytest.approx(expected.result.losses, rel=SAME)
    assert found.trace is not None and found.predicted.digest == found.trace.digest


def test_a_training_that_goes_on_has_the_same_batches(shards: Path, tmp_path: Path, gloo_pool: Pool) -> None:
    name = "static(adapts=True)"
    whole = trained(shards, name, gloo_pool)
    kept = Checkpoints(tmp_path / "kept", every=2)
    first = trained(shards, name, gloo_pool, 2, checkpoints=kept)
    rest = trained(shards, name, gloo_pool, checkpoints=Checkpoints(tmp_path / "kept", every=2, resumes=True))
    assert rest.first_step == 2
    assert [*first.result.losses, *rest.result.losses] == pytest.approx(whole.result.losses, rel=SAME)
    assert [it.groups for it in (*first.iterations, *rest.iterations)] == [
        it.groups for it in whole.iterations
    ]
    assert rest.metrics[-1].total_tokens == sum(it.tokens for it in whole.iterations)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tokens": 1000, "iterations": None}, "--tokens"),
        ({"profiler": "somewhere"}, "--profiler"),
        ({"source": Source(evaluate_every=2)}, "--evaluate-every"),
        ({"source": Source(document_mask=False)}, "--no-document-mask"),
    ],
)
def test_what_groups_do_not_go_with_is_refused(shards: Path, given: dict[str, Any], said: str) -> None:
    plan = Plan.of(MODEL, Cluster.detect(4), Workload(8, CONTEXT), dp=4, microbatch_size=1)
    with pytest.raises(SpecError, match=said) as caught:
        api.run_training(plan, **{"data": shards, "iterations": 2, "sequence_groups": "static", **given})
    assert caught.value.next


@pytest.mark.parametrize(
    ("choices", "said"), [({"dp": 2, "pp": 2}, "pp"), ({"dp": 4, "sharding": "zero3"}, "sharding")]
)
def test_plans_without_groups_are_refused(shards: Path, choices: dict[str, Any], said: str) -> None:
    plan = Plan.of(MODEL, Cluster.detect(4), Workload(8, CONTEXT), microbatch_size=1, **choices)
    with pytest.raises(PlanError, match=said):
        api.run_training(plan, data=shards, iterations=2, sequence_groups="static", device="cpu")


def test_a_name_nobody_knows_is_refused(shards: Path) -> None:
    plan = Plan.of(MODEL, Cluster.detect(4), Workload(8, CONTEXT), dp=4, microbatch_size=1)
    with pytest.raises(PlanError, match="statik"):
        api.run_training(plan, data=shards, iterations=2, sequence_groups="statik", device="cpu")


def test_a_plan_of_lengths_is_predicted_for_what_is_read(
    shards: Path, tmp_path: Path, gloo_pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    """Packed documents that are masked take less attention; bytes of a text have no documents."""
    (tmp_path / "text.txt").write_text("a few words. " * 400)
    model = ModelSpec.decoder(2, 32, 2, max_sequence_length=CONTEXT, vocabulary_size=256, name="small")
    work = Workload(8, CONTEXT, ((8, 0.5), (CONTEXT, 0.5)))
    plan = Plan.of(model, Cluster.detect(4), work, dp=4, microbatch_size=1)
    told = []
    for data in (shards, tmp_path / "text.txt"):
        done = api.run_training(
            plan, data=data, iterations=2, device="cpu", pool=gloo_pool, measures_memory=False
        )
        told.append("drawn_steps_s" in done.predicted.metadata)
        assert ("predicted without them" in caplog.text) == (data != shards)
    assert told == [True, False]
