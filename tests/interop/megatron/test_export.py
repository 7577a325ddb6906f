"""A Megatron-LM launch: its model comes back from its own options, and what it has no option for is refused."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.interop import Given
from meshwright.interop.exported import ExportError
from meshwright.interop.megatron.arguments import import_megatron
from meshwright.interop.megatron.export import export_megatron
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model
from meshwright.specs.config.source import model_presets
from meshwright.specs.error import PlanError

# Megatron's options for these two are read as "does not matter", and a name is not an option.
NOT_READ = ("name", "source", "norm_epsilon", "rope_theta", "architecture")
UNSAID = {
    **dict.fromkeys(("gemma-2-9b", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b"), "window"),
    "gpt-oss-20b": "sinks",
    "gpt-oss-120b": "sinks",
    "mistral-7b": "window",
}
CLUSTER = "2x8xH100"


def text_of(model: str | ModelSpec = "llama-3.1-8b", length: int = 1024, **choices: Any) -> str:
    formats = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
    cluster = Cluster(CLUSTER)
    plan = Plan.of(load_model(model), cluster, Workload(64, length), **{**formats, **choices})
    return export_megatron(plan, cluster).text


def refusals(model: str | ModelSpec = "llama-3.1-8b", **choices: Any) -> str:
    with pytest.raises(ExportError) as error:
        text_of(model, **choices)
    return str(error.value)


@pytest.mark.parametrize("name", sorted(set(model_presets()) - set(UNSAID)))
def test_the_model_is_in_the_options(name: str) -> None:
    model = load_model(name)
    found = import_megatron(text_of(name), "job.sh", Given(cluster=CLUSTER)).plan.model
    assert found.num_parameters == model.num_parameters
    assert {key: value for key, value in found.to_dict().items() if key not in NOT_READ} == {
        key: value for key, value in model.to_dict().items() if key not in NOT_READ
    }


@pytest.mark.parametrize(("name", "word"), UNSAID.items())
def test_a_model_without_options_is_refused(name: str, word: str) -> None:
    assert word in refusals(name)


@pytest.mark.parametrize(
    ("choices", "word"),
    [
        ({"tp": 2, "overlap": ("reduce", "tp")}, "sequence parallelism"),
        ({"sharding": "zero1", "overlap": ("gather",)}, "only with gradients"),
        ({"sharding": "zero3", "overlap": ("reduce",)}, "both directions"),
        ({"recompute": "selective_op"}, "by operation"),
        ({"recompute": "selective", "recompute_blocks": (4,)}, "selective recompute is of all blocks"),
        ({"recompute": "full", "pp": 2, "layers_per_stage": (16, 16), "recompute_blocks": (3, 4)}, "as many blocks"),
        ({"float8": "rowwise"}, "recipes"),
        ({"schedule": "zb_h1", "pp": 4}, 'schedule = "zb_h1"'),
        ({"pp": 4, "num_chunks": 2, "schedule": "interleaved_1f1b", "microbatch_size": 16, "dp": 4}, "groups of pp(4)"),
        ({"pp": 4, "layers_per_stage": (10, 6, 8, 8)}, "layers_per_stage = 10, 6, 8, 8"),
        ({"pp": 4, "layers_per_stage": (9, 8, 8, 7), "num_chunks": 1, "ep": 2}, "has no experts"),
        ({"master_dtype": ""}, "optimizer's copy"),
        ({"reduction_dtype": "float16"}, "summed in"),
        ({"tp": 8, "length": 2052, "sequence_parallel": True}, "divides by 8"),
        ({"cp": 4, "tp": 2, "sequence_parallel": True, "length": 1000}, "divides by 16"),
        ({"software": "eager"}, "fused by hand"),
    ],
)  # fmt: skip
def test_what_it_has_no_option_for(choices: dict[str, Any], word: str) -> None:
    assert word in refusals(**choices)


def test_what_depends_on_the_model() -> None:
    assert "with sequence parallelism only" in refusals("mixtral-8x7b", tp=2)
    assert "does not divide 8 experts" in refusals("mixtral-8x7b", ep=16)
    assert "positions" in refusals("gpt2", length=2048)
    assert "does not divide the vocabulary" in refusals("gpt2", tp=2)
    with pytest.raises(PlanError, match="tp=4 does not divide the 14 heads and 2 key-value heads"):
        refusals("qwen2.5-0.5b", tp=4)
    biased = load_model("llama-3.1-8b").changed(has_mlp_bias=True)
    assert "biases of some" in refusals(biased)


@pytest.mark.parametrize(
    ("choices", "options"),
    [
        ({"pp": 2, "layers_per_stage": (15, 17)}, ("first-pipeline-num-layers 15", "last-pipeline-num-layers 17")),
        ({"pp": 4, "layers_per_stage": (7, 9, 9, 7)}, ("first-pipeline-num-layers 7", "last-pipeline-num-layers 7")),
        ({"recompute": "full"}, ("--recompute-method uniform", "--recompute-num-layers 1")),
        ({"recompute": "full", "recompute_blocks": (5,)}, ("--recompute-method block", "--recompute-num-layers 5")),
        ({"recompute": "full", "recompute_blocks": (32,)}, ("--recompute-method uniform",)),
        ({"sharding": "zero1", "sharding_degree": 8}, ("--num-distributed-optimizer-instances 2",)),
        ({"sharding": "zero2"}, ("--data-parallel-sharding-strategy optim_grads\n", "--ckpt-format fsdp_dtensor")),
        ({"software": "captured"}, ("--cuda-graph-scope full_iteration", "--te-rng-tracker")),
        ({"attention": "unfused_dropout"}, ("--attention-backend unfused", "--attention-dropout 0.1")),
        ({"cp": 2}, ("export CUDA_DEVICE_MAX_CONNECTIONS=1",)),
        ({"cp": 2, "context": "all_gather"}, ("--cp-comm-type all_gather",)),
        ({"cp": 2, "context": "ulysses"}, ("--cp-comm-type a2a",)),
        ({"cp": 8, "ulysses": 4}, ("--cp-comm-type a2a+p2p", "--hierarchical-context-parallel-sizes 4 2")),
    ],
)  # fmt: skip
def test_options_bring_what_they_need(choices: dict[str, Any], options: tuple[str, ...]) -> None:
    text = text_of(**choices)
    assert all(option in text for option in options)


def test_its_own_kind_of_context_parallelism_is_left_out() -> None:
    assert "cp-comm-type" not in text_of(cp=2) + text_of(context="ulysses")
    assert 'token_layout = "contiguous"' in refusals(cp=2, token_layout="contiguous")
    assert text_of(cp=2, token_layout="zigzag").splitlines()[2:] == text_of(cp=2).splitlines()[2:]
    assert "does not repeat the 8 key-value heads" in refusals(cp=16, context="ulysses")


def test_embedding_and_loss_count_as_layers() -> None:
    model = ModelSpec.decoder(30, 256, 8)
    text = text_of(model, pp=4, layers_per_stage=(7, 8, 8, 7))
    assert (
        "--account-for-embedding-in-pipeline-split" in text and "--account-for-loss-in-pipeline-split" in text
    )
    assert "decoder-first" not in text
    one = text_of(ModelSpec.decoder(31, 256, 8), pp=4, layers_per_stage=(8, 8, 8, 7))
    assert "--account-for-loss-in-pipeline-split" in one and "account-for-embedding" not in one


def test_fsdp_does_not_share_one_queue() -> None:
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in text_of(sharding="zero3", overlap=("reduce", "gather"), cp=2)


def test_nodes_and_processes_are_those_of_the_cluster() -> None:
    assert "NUM_NODES=2\nGPUS_PER_NODE=8\n" in text_of()


def test_pipelines_inside_data_parallelism_are_an_option_of_its_own() -> None:
    """Megatron-LM's ranks "tp-cp-ep-pp-dp": neighbours of a pipeline stand next to each other."""
    formats: dict[str, Any] = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
    plan = Plan.of(load_model("llama-3.1-8b"), Cluster("2x8xH100"), Workload(32, 4096), pp=2, dp=8, **formats)
    inside = plan.changed(mesh_order=("dp", "pp", "cp", "tp"))
    usual, other = (export_megatron(each, Cluster("2x8xH100")).text for each in (plan, inside))
    assert "--use-tp-pp-dp-mapping" in other and "--use-tp-pp-dp-mapping" not in usual


def test_corrections_of_routers_come_back_as_they_went() -> None:
    model = load_model("deepseek-v3").changed(num_layers=16)
    choices: dict[str, Any] = {"dp": 16, "ep": 16}
    text = text_of(model, passes=("correct_routers(rate=0.002)",), **choices)
    assert "--moe-router-enable-expert-bias" in text and "--moe-router-bias-update-rate 0.002" in text
    assert "--moe-router-score-function sigmoid" in text
    back = import_megatron(text, "run.sh", Given(cluster=CLUSTER, model=model))
    assert back.plan.options_of("correct_routers") == {"rate": 0.002}
    assert "expert-bias" not in text_of(model, **choices)
    assert "pass clip_gradients" in refusals(model, passes=("clip_gradients(max_norm=1.0)",), **choices)
