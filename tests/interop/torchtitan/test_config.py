"""torchtitan's TOML, of several releases, as fields of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.interop import Given, Imported
from meshwright.interop.torchtitan.config import import_torchtitan
from meshwright.specs.error import PlanError, UnknownNameError

MODEL = '[model]\nname = "llama3"\nflavor = "8B"\n'
PIPELINE = "[parallelism]\npipeline_parallel_degree = 4\n"


def read(text: str, **given: Any) -> Imported:
    return import_torchtitan(text, "job.toml", Given(**{"cluster": "2x8xH100", **given}))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {"dp": 16, "sharding": "zero3", "microbatch_size": 8, "software": "eager", "float8": ""}),
        ("", {"recompute": "selective_op"}),
        ("", {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32", "overlap": ("reduce", "gather")}),
        ("[parallelism]\ntensor_parallel_degree = 8", {"tp": 8, "dp": 2, "sequence_parallel": True}),
        ("[training]\ntensor_parallel_degree = 8\nbatch_size = 4", {"tp": 8, "microbatch_size": 4}),
        ("[parallelism]\ndata_parallel_replicate_degree = 2", {"dp": 16, "sharding_degree": 8}),
        ("[parallelism]\ndata_parallel_replicate_degree = 16\ndata_parallel_shard_degree = 1", {"sharding": "none"}),
        ("[parallelism]\nfsdp_reshard_after_forward = 'never'", {"sharding": "zero2"}),
        (
            "[parallelism]\ntensor_parallel_degree = 2\nenable_async_tensor_parallel = true",
            {"overlap": ("reduce", "gather", "tp")},
        ),
        ("[parallelism]\ncontext_parallel_degree = 2", {"cp": 2, "context": "all_gather"}),
        (
            "[parallelism]\ncontext_parallel_degree = 2\ncontext_parallel_rotate_method = 'alltoall'",
            {"cp": 2, "context": "ring"},
        ),
        ("[activation_checkpoint]\nmode = 'full'", {"recompute": "full"}),
        ("[activation_checkpoint]\nmode = 'none'", {"recompute": "none"}),
        ("[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = '1'", {"recompute": "full"}),
        ("[compile]\nenable = true", {"software": "compiled"}),
        ("[training]\ncompile = true", {"software": "compiled"}),
        ("[compile]\nenable = true\ncomponents = ['loss']", {"software": "eager"}),
        ("[float8]\nenable_float8_linear = true", {"float8": "tensorwise"}),
        (PIPELINE, {"schedule": "1f1b", "layers_per_stage": (8, 9, 8, 7), "microbatch_size": 1, "sharding": "zero2"}),
        (PIPELINE + "pipeline_parallel_microbatches = 4", {"microbatch_size": 2}),
        (
            "[experimental]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'Interleaved1F1B'",
            {"num_chunks": 2, "pp": 2},
        ),
        (
            PIPELINE + "pipeline_parallel_schedule = 'Interleaved1F1B'\npipeline_parallel_layers_per_stage = 3",
            {"num_chunks": 3},
        ),
    ],
)  # fmt: skip
def test_keys_become_fields(text: str, fields: dict[str, Any]) -> None:
    found = read(MODEL + text).plan
    assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("converters", "extra", "recipe"),
    [
        ('["float8"]', "", "tensorwise"),
        ('"float8"', "", "tensorwise"),
        ('["quantize.linear.float8"]', '[quantize.linear.float8]\nrecipe_name = "rowwise"', "rowwise"),
        ('["mx"]', '[mx]\nrecipe_name = "mxfp8"', "mxfp8"),
    ],
)
def test_converters_become_a_recipe(converters: str, extra: str, recipe: str) -> None:
    assert read(f"{MODEL}converters = {converters}\n{extra}").plan.float8 == recipe


@pytest.mark.parametrize(
    ("name", "flavor", "preset"),
    [
        ("llama3", "70B", "llama-3.1-70b"),
        ("llama3", "8B_flex", "llama-3.1-8b"),
        ("deepseek_v3", "671B", "deepseek-v3"),
        ("qwen3", "30B-A3B", "qwen3-30b-a3b"),
    ],
)
def test_flavors_are_presets(name: str, flavor: str, preset: str) -> None:
    assert read(f'[model]\nname = "{name}"\nflavor = "{flavor}"').plan.model.name == preset


def test_what_has_no_preset_is_a_typed_error_with_near_names() -> None:
    with pytest.raises(UnknownNameError, match="llama3"):
        read('[model]\nname = "llama4"\nflavor = "17bx16e"')
    with pytest.raises(UnknownNameError, match="8B"):
        read('[model]\nname = "llama3"\nflavor = "9B"')
    with pytest.raises(UnknownNameError, match="1F1B"):
        read(MODEL + PIPELINE + "pipeline_parallel_schedule = 'ZBVZeroBubble'")


def test_the_global_batch_makes_accumulation() -> None:
    found = read(MODEL + "[training]\nlocal_batch_size = 2\nglobal_batch_size = 64\nseq_len = 4096").plan
    assert (found.workload.global_batch, found.num_microbatches, found.workload.sequence_length) == (
        64,
        2,
        4096,
    )


def test_every_key_is_in_exactly_one_list() -> None:
    text = MODEL + (
        "[metrics]\nlog_freq = 10\n[training]\nsteps = 5\nenable_cpu_offload = true\nnew_switch = 3\n"
        "[quantize.grouped_mm.float8]\nfqns = ['experts']\n"
    )
    found = read(text)
    unknown = {option.name: option.meaning for option in found.unknown}
    assert set(unknown) == {"training.enable_cpu_offload", "training.new_switch"}
    assert {"metrics.log_freq", "training.steps", "quantize.grouped_mm.float8.fqns"} == {
        o.name for o in found.irrelevant
    }


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("x = [", {}, ("TOML",)),
        ("[a]\nb = 1", {}, ("no torchtitan configuration",)),
        (MODEL, {"cluster": ""}, ("--cluster",)),
        (MODEL, {"cluster": "H100"}, ("--gpus",)),
        (MODEL + "[parallelism]\ntensor_parallel_degree = 5", {}, ("16 devices",)),
        (MODEL + "[parallelism]\ntensor_parallel_degree = 'x'", {}, ("tensor_parallel_degree",)),
        (MODEL + "converters = 5", {}, ("converters",)),
    ],
)
def test_what_is_missing_is_told(text: str, given: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as told:
        read(text, **given)
    assert all(word in str(told.value) for word in words), str(told.value)


def test_what_a_converter_asks_for_beyond_linear_layers_is_listed() -> None:
    text = (
        MODEL
        + 'converters = ["quantize.grouped_mm.float8"]\n[quantize.grouped_mm.float8]\nfqns = ["experts"]'
    )
    assert {option.value for option in read(text).unknown} == {"quantize.grouped_mm.float8", "['experts']"}
