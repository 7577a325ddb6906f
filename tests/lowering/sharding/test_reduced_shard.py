"""Behind a reduction under ZeRO-1 a shard of the sum is there, and the whole gradients no more."""

from __future__ import annotations

import pytest

from meshwright.ir import verify
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.plan.workload import Workload

MODEL = ModelSpec.decoder(2, 32, 2, vocabulary_size=64, max_sequence_length=8)


def lowered(sharding: str, *passes: str):
    plan = Plan.of(
        MODEL, Cluster("2xcpu"), Workload(2, 8), dp=2, sharding=sharding, dtype="float32",
        passes=tuple(PassOption(name) for name in passes),
    )  # fmt: skip
    return lower(plan, registered()["1f1b"])


@pytest.mark.parametrize("passes", [(), ("clip_gradients",)], ids=str)
def test_who_reads_what_is_reduced_reads_shards_only(passes) -> None:
    program = lowered("zero1", *passes)
    sizes = {row.kind: row.by_index for row in program.tables.value_bytes}
    assert sizes["reduced_gradient"] == (sizes["weight_gradient"][0] / 2,)
    used = [program.tables.effects[e] for e in sorted(set(program.columns.effect.tolist()))]
    for effect in used:
        if effect.name in ("STEP", "NORM"):
            kinds = {pattern.kind for pattern in effect.reads}
            assert "reduced_gradient" in kinds and "weight_gradient" not in kinds
    verify(program, "in_order")


@pytest.mark.parametrize(
    ("sharding", "passes"), [("none", ()), ("zero2", ()), ("zero1", ("canonical_reduction",))], ids=str
)
def test_others_keep_one_memory_for_both(sharding, passes) -> None:
    kinds = {row.kind for row in lowered(sharding, *passes).tables.value_bytes}
    assert "reduced_gradient" not in kinds
