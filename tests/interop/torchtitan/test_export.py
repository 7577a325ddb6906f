"""A torchtitan TOML: flavors, meshes and stages, and what it has no key for is refused."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from meshwright.interop import Given
from meshwright.interop.exported import ExportError
from meshwright.interop.torchtitan.config import import_torchtitan
from meshwright.interop.torchtitan.export import export_torchtitan, flavor_of
from meshwright.interop.torchtitan.option import FLAVORS
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model

FSDP: dict[str, Any] = {"sharding": "zero3", "overlap": ("reduce", "gather"), "software": "compiled"}
FORMATS = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
CLUSTER = "2x8xH100"


def plan_of(model: str | ModelSpec = "llama-3.1-8b", length: int = 1024, **choices: Any) -> Plan:
    chosen = {**FORMATS, **FSDP, **choices}
    chosen.setdefault("sequence_parallel", chosen.get("tp", 1) > 1)
    return Plan.of(load_model(model), Cluster(CLUSTER), Workload(64, length), **chosen)


def tables(*given: Any, **choices: Any) -> dict[str, Any]:
    return tomllib.loads(export_torchtitan(plan_of(*given, **choices), Cluster(CLUSTER)).text)


@pytest.mark.parametrize(
    ("name", "flavor"), [(name, flavor) for name, flavors in FLAVORS.items() for flavor in flavors]
)
def test_every_flavor_is_found_again(name: str, flavor: str) -> None:
    model = load_model(FLAVORS[name][flavor])
    found = flavor_of(model)
    assert found is not None and load_model(FLAVORS[found[0]][found[1]]) == model


@pytest.mark.parametrize(
    ("choices", "word"),
    [
        ({"model": ModelSpec.decoder(4, 64, 8)}, "names a flavor"),
        ({"vocabulary": "two_barriers"}, "first and the last stage"),
        ({"sharding": "zero1"}, "shards gradients"),
        ({"sharding": "none", "overlap": ("reduce",), "cp": 2}, "sharded over cp"),
        ({"sharding": "none", "overlap": ("reduce",), "tp": 2}, "no other parallelism"),
        ({"sharding": "none", "overlap": (), "tp": 8, "pp": 2, "layers_per_stage": (16, 16)}, "needs FSDP"),
        ({"sharding_degree": 2, "cp": 4}, "whole groups of cp(4)"),
        ({"tp": 2, "sequence_parallel": False}, "always divides sequences"),
        ({"overlap": ("reduce",)}, "always overlaps gather and reduce"),
        ({"reduction_dtype": "bfloat16"}, "reduced in float32"),
        ({"dtype": "float16"}, 'dtype = "float16"'),
        ({"sharding": "zero2", "dtype": "float32", "master_dtype": ""}, "sharded copy"),
        ({"recompute": "selective"}, "attention alone"),
        ({"recompute": "full", "recompute_blocks": (8,)}, "recompute_blocks = 8"),
        ({"attention": "unfused"}, "fused attention"),
        ({"float8": "blockwise"}, "no such recipe"),
        ({"software": "eager", "tp": 2, "overlap": ("reduce", "gather", "tp")}, "is compiled"),
        ({"length": 1008, "cp": 8, "tp": 2}, "multiples of"),
        ({"pp": 4, "layers_per_stage": (8, 7, 8, 9)}, "layers_per_stage = 8, 7, 8, 9"),
        ({"pp": 4, "schedule": "zb_h1"}, "1f1b"),
        ({"schedule": "gpipe"}, "without a pipeline"),
        ({"model": "qwen3-30b-a3b", "ep": 2, "cp": 4}, "multiple of 4"),
        ({"ep": 2}, "has no experts"),
    ],
)  # fmt: skip
def test_what_it_has_no_key_for(choices: dict[str, Any], word: str) -> None:
    with pytest.raises(ExportError) as error:
        tables(**choices)
    assert word in str(error.value)


def test_the_interleaved_schedule_runs_equal_rounds() -> None:
    chosen: dict[str, Any] = {
        "pp": 8,
        "dp": 2,
        "schedule": "interleaved_1f1b",
        "num_chunks": 2,
        "layers_per_stage": (2,) * 16,
    }
    plan = plan_of(**chosen).changed(workload=Workload(2 * 19, 1024))
    with pytest.raises(ExportError, match="19 microbatches: .* 2 equal rounds"):
        export_torchtitan(plan, Cluster(CLUSTER))


@pytest.mark.parametrize(
    ("choices", "replicas", "shards"),
    [
        ({}, 1, 16),
        ({"sharding_degree": 4}, 4, 4),
        ({"sharding_degree": 8, "cp": 2}, 2, 4),
        ({"sharding": "none", "overlap": ("reduce",)}, 16, 1),
        ({"tp": 8}, 1, 2),
    ],
)
def test_copies_and_shards(choices: dict[str, Any], replicas: int, shards: int) -> None:
    found = tables(**choices)["parallelism"]
    assert (
        found["data_parallel_replicate_degree"] == replicas and found["data_parallel_shard_degree"] == shards
    )


@pytest.mark.parametrize(
    ("pp", "chunks", "counts"),
    [
        (4, 1, (8, 8, 8, 8)),
        (4, 1, (8, 9, 8, 7)),
        (4, 1, (7, 9, 9, 7)),
        (4, 1, (6, 9, 9, 8)),
        (4, 2, (3, 5, 4, 4, 4, 4, 4, 4)),
        (4, 3, (2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1)),
        (2, 1, (16, 16)),
        (2, 1, (14, 18)),
        (8, 1, (3, 5, 4, 4, 4, 4, 4, 4)),
    ],
)
def test_stages_come_back(pp: int, chunks: int, counts: tuple[int, ...]) -> None:
    schedule = "1f1b" if chunks == 1 else "interleaved_1f1b"
    plan = plan_of(pp=pp, num_chunks=chunks, layers_per_stage=counts, schedule=schedule, software="eager")
    text = export_torchtitan(plan, Cluster(CLUSTER)).text
    assert import_torchtitan(text, "job.toml", Given(cluster=CLUSTER)).plan == plan


def test_a_number_of_stages_that_no_layers_of_a_stage_make() -> None:
    counts = (2, *(3,) * 8, 2, 2, 2)  # 33 with the first stage's one less; ceil(33 / n) is never 12
    with pytest.raises(ExportError, match="layers_per_stage"):
        tables(pp=4, num_chunks=3, layers_per_stage=counts, schedule="interleaved_1f1b")


def test_a_local_batch_goes_through_the_pipeline_once() -> None:
    chosen: dict[str, Any] = {"pp": 2, "dp": 8, "layers_per_stage": (16, 16), "microbatch_size": 2}
    found = tables(**chosen)
    assert found["training"]["local_batch_size"] == 8 and found["training"]["global_batch_size"] == 64
    assert found["parallelism"]["pipeline_parallel_microbatch_size"] == 2
    assert tables(microbatch_size=2)["training"]["local_batch_size"] == 2


@pytest.mark.parametrize(
    ("recompute", "keys"),
    [
        ("none", {"mode": "none"}),
        ("full", {"mode": "full"}),
        ("selective_op", {"mode": "selective", "selective_ac_option": "op"}),
    ],
)
def test_recompute(recompute: str, keys: dict[str, str]) -> None:
    assert tables(recompute=recompute)["activation_checkpoint"] == keys


def test_a_recipe_of_float8_has_a_converter() -> None:
    found = tables(float8="rowwise")
    assert found["model"]["converters"] == ["quantize.linear.float8"]
    assert found["quantize"]["linear"]["float8"]["recipe_name"] == "rowwise"
    assert "quantize" not in tables()
