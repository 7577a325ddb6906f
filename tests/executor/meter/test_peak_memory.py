"""The executed peak of live storages of every device and tier is within ten percent of the simulated one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.api.trainings.training import run_training
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.metrics import peak_bytes
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.schedules.order import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.piece import as_executed

LLAMA = ModelSpec.decoder(4, 128, 4, num_kv_heads=2, vocabulary_size=512, max_sequence_length=128)
TIED = replace(LLAMA, has_tied_embeddings=True)
GPT = ModelSpec.gpt(4, 128, 4, vocabulary_size=512, max_sequence_length=128, name="gpt", source="tests")
MODELS = {"llama": LLAMA, "tied": TIED, "gpt": GPT}
WORKLOAD = Workload(8, 64)
OFFLOAD = {"passes": (PassOption("offload_optimizer"),)}
MIXED = {"dtype": "bfloat16", "reduction_dtype": "float32", "master_dtype": "float32"}
LARGEST_ERROR = 0.10
QUICK: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"pp": 2, **OFFLOAD, **MIXED}),  # the master copy stays on the device
    ("llama", {"dp": 2, "sharding": "zero1", **OFFLOAD}),
    ("gpt", {"tp": 2}),
    ("llama", {"pp": 2, "recompute": "selective"}),
)
SLOW: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"pp": 1}),
    ("llama", {"tp": 2, "microbatch_size": 2}),
    ("llama", {"pp": 2, "schedule": "gpipe"}),
    ("llama", {"pp": 2, "microbatch_size": 2}),
    ("llama", {"pp": 2, "recompute": "full"}),
    ("llama", {"pp": 2, "schedule": "interleaved_1f1b"}),
    ("llama", {"pp": 2, "schedule": "zb_h1"}),
    ("llama", {"pp": 2, "schedule": "zbv"}),
    ("llama", {"pp": 2, "dtype": "bfloat16"}),
    ("llama", {"dp": 2, "microbatch_size": 2}),
    ("llama", {"dp": 2, "sharding": "zero1"}),
    ("llama", {"dp": 2, "sharding": "zero3", "recompute": "full"}),
    ("llama", {"dp": 2, **OFFLOAD}),
    ("llama", {"dp": 2, "sharding": "zero3", **OFFLOAD}),
    ("llama", {"dp": 2, "sharding": "zero1", **OFFLOAD, **MIXED}),
    ("llama", {"dp": 2, "sharding": "zero3", **MIXED}),
    ("llama", {"tp": 2, "sequence_parallel": True, "recompute": "full"}),
    ("llama", {"tp": 2, **OFFLOAD}),
    ("llama", {"tp": 2, **MIXED}),
    ("llama", {"tp": 2, "sequence_parallel": True, "recompute": "selective"}),
    ("gpt", {"dp": 2, "sharding": "zero3", "recompute": "selective"}),
    ("gpt", {"pp": 2, "schedule": "zb_h1"}),
    ("gpt", {"tp": 2, "sequence_parallel": True}),
    ("tied", {"pp": 2, "schedule": "zbv"}),
    ("tied", {"dp": 2, "sharding": "zero3"}),
    ("tied", {"pp": 2, **OFFLOAD}),
)


def words(case: tuple[str, dict[str, Any]]) -> str:
    """Of a case, for its name."""
    model, choices = case
    said = (f"{name}={value}" for name, value in choices.items() if name != "passes")
    return " ".join([model, *said, *(["offload"] if "passes" in choices else [])])


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)],
    ids=words,
)  # fmt: skip
def test_every_tiers_peak_is_as_simulated(case: tuple[str, dict[str, Any]], gloo_pool: Pool) -> None:
    model, choices = case
    given = {"dp": 1, **choices}
    num_devices = given.get("pp", 1) * given["dp"] * given.get("tp", 1)
    plan = Plan.of(MODELS[model], Cluster(f"{num_devices}xcpu"), WORKLOAD, **given)
    done = run_training(plan, data="random", iterations=1, pool=gloo_pool)
    assert done.trace is not None
    tiers = {(curve.device, curve.tier) for curve in done.predicted.memory}
    assert tiers == {(curve.device, curve.tier) for curve in done.trace.memory}
    assert ("host" in {tier for _, tier in tiers}) == ("passes" in choices)
    if "passes" in choices:  # the host's memory that the estimate tells is what the run has there
        told = estimate_memory(as_executed(plan), Cluster(f"{num_devices}xcpu"), registered()[plan.schedule])
        assert max(each.host_bytes for each in told.devices) == pytest.approx(
            peak_bytes(done.trace, tier="host"), rel=LARGEST_ERROR
        )
    if (
        "passes" in choices and plan.sharding == "none"
    ):  # the step is the fullest moment, whatever forward keeps
        most = max(peak_bytes(done.trace, device) for device, tier in tiers if tier == "device")
        assert told.allocated_bytes == pytest.approx(most, rel=LARGEST_ERROR)
    for device, tier in sorted(tiers):
        simulated = peak_bytes(done.predicted, device, tier)
        assert peak_bytes(done.trace, device, tier) == pytest.approx(simulated, rel=LARGEST_ERROR), tier
