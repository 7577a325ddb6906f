"""Megatron-LM's options as fields of a plan: each that matters, and what happens to the others."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.interop import Given, Imported
from meshwright.interop.megatron.arguments import import_megatron
from meshwright.specs import Plan, load_model
from meshwright.specs.error import PlanError

BASE = (
    "--num-layers 12 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --swiglu --disable-bias-linear "
    "--untie-embeddings-and-output-weights --vocab-size 1000 --micro-batch-size 2 --global-batch-size 64 --bf16 "
)
CLUSTER = "16xH100"


def read(text: str, **given: Any) -> Imported:
    return import_megatron(text, "run.sh", Given(**{"cluster": CLUSTER, **given}))


def plan(options: str = "", **given: Any) -> Plan:
    return read(BASE + options, **given).plan


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (
            "",
            {
                "dp": 16,
                "sharding": "none",
                "recompute": "none",
                "overlap": (),
                "attention": "flash",
                "dtype": "bfloat16",
            },
        ),
        ("--tensor-model-parallel-size 4 --sequence-parallel", {"tp": 4, "dp": 4, "sequence_parallel": True}),
        ("--tensor-model-parallel-size=4", {"tp": 4, "sequence_parallel": False}),
        ("--sequence-parallel", {"sequence_parallel": False}),
        ("--context-parallel-size 2", {"cp": 2, "dp": 8}),
        ("--pipeline-model-parallel-size 2", {"pp": 2, "schedule": "1f1b", "layers_per_stage": (6, 6)}),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
            {"num_chunks": 3, "schedule": "interleaved_1f1b", "layers_per_stage": (2,) * 6},
        ),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3", {"num_chunks": 3}),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 4",
            {"layers_per_stage": (2, 3, 3, 4)},
        ),
        (
            "--num-layers 14 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 "
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            {"layers_per_stage": (3, 4, 4, 3), "num_chunks": 2},
        ),
        ("--use-distributed-optimizer", {"sharding": "zero1"}),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 4", {"sharding_degree": 4}),
        ("--use-torch-fsdp2", {"sharding": "zero3", "overlap": ("reduce", "gather")}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"sharding": "zero2"}),
        ("--overlap-grad-reduce --overlap-param-gather", {"overlap": ("reduce", "gather")}),
        ("--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap", {"overlap": ("tp",)}),
        ("--tp-comm-overlap", {"overlap": ()}),
        ("--recompute-activations", {"recompute": "selective"}),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            {"recompute": "full", "recompute_blocks": ()},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 5",
            {"recompute": "full", "recompute_blocks": (5,)},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 2 "
            "--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 0",
            {"layers_per_stage": (4, 4, 4, 0), "recompute_blocks": (2, 2, 2, 0)},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 1 "
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
            {"num_chunks": 3, "recompute_blocks": (1, 1, 1, 1, 1, 1)},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 12",
            {"recompute": "full", "recompute_blocks": ()},
        ),
        ("--recompute-method block --recompute-num-layers 4", {"recompute": "none", "recompute_blocks": ()}),
        ("--fp8-format hybrid", {"float8": "tensorwise"}),
        ("--fp8-format e4m3 --fp8-recipe blockwise", {"float8": "blockwise"}),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", {"float8": "mxfp8"}),
        ("", {"reduction_dtype": "float32", "master_dtype": "float32"}),
        ("--grad-reduce-in-bf16", {"reduction_dtype": "bfloat16"}),
        ("--attention-backend unfused --attention-dropout 0.0", {"attention": "unfused"}),
        ("--transformer-impl local", {"attention": "unfused_dropout"}),
        ("--transformer-impl local --attention-dropout 0.05", {"attention": "unfused_dropout"}),
        ("--attention-dropout 0.1", {"attention": "flash", "software": "fused"}),
        ("--context-parallel-size 2", {"cp": 2, "context": "ring"}),
        ("--context-parallel-size 2 --cp-comm-type p2p", {"context": "ring"}),
        ("--context-parallel-size 2 --cp-comm-type a2a", {"context": "ulysses"}),
        (
            "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2",
            {"context": "ring", "ulysses": 2},
        ),
        ("--context-parallel-size 2 --cp-comm-type all_gather all_gather", {"context": "all_gather"}),
        ("--enable-cuda-graph --cuda-graph-scope full_iteration", {"software": "captured"}),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", {"software": "captured"}),
        ("--cuda-graph-impl none --cuda-graph-scope full_iteration", {"software": "fused"}),
        ("--transformer-impl local --use-flash-attn", {"attention": "flash"}),
    ],
)
def test_options_become_fields(options: str, fields: dict[str, Any]) -> None:
    found = plan(options)
    assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("", {"architecture": "llama", "num_kv_heads": 16, "head_dim": 64, "vocabulary_size": 1024}),
        ("", {"intermediate_size": 2688, "has_tied_embeddings": False, "has_qkv_bias": False}),
        ("--ffn-hidden-size 3000 --kv-channels 32", {"intermediate_size": 3000, "head_dim": 32}),
        ("--group-query-attention --num-query-groups 4", {"num_kv_heads": 4}),
        ("--qk-layernorm --add-qkv-bias", {"architecture": "qwen3", "has_query_key_norm": True, "has_qkv_bias": True}),
        ("--make-vocab-size-divisible-by 8 --tensor-model-parallel-size 2", {"vocabulary_size": 1008}),
        ("--padded-vocab-size 1234", {"vocabulary_size": 1234}),
        (
            "--num-experts 8 --moe-router-topk 3 --moe-ffn-hidden-size 512 --moe-layer-freq ([0]*2+[1]*10)",
            {"num_experts": 8, "num_experts_per_token": 3, "expert_intermediate_size": 512, "dense_layers": (0, 1)},
        ),
        ("--num-experts 8", {"architecture": "mixtral", "num_experts_per_token": 2, "expert_intermediate_size": 2688}),
        ("--num-experts 8 --moe-layer-freq 2", {"dense_layers": (1, 3, 5, 7, 9, 11)}),
        (
            "--num-experts 8 --multi-latent-attention --kv-lora-rank 64 --q-lora-rank 96 --qk-head-dim 32 "
            "--qk-pos-emb-head-dim 16 --v-head-dim 32 --moe-shared-expert-intermediate-size 256",
            {"architecture": "deepseek_v3", "key_value_rank": 64, "query_rank": 96, "head_dim": 48, "rotary_head_dim": 16},
        ),
    ],
)  # fmt: skip
def test_options_become_a_model(options: str, fields: dict[str, Any]) -> None:
    model = plan(options).model
    said = {**model.dimensions(), "architecture": model.architecture}
    assert {name: said[name] for name in fields} == fields


def test_a_plain_mlp_is_gpt2s() -> None:
    found = read(
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 100 --fp16"
    )
    assert found.plan.model.architecture == "gpt2" and found.plan.model.intermediate_size == 256
    assert found.plan.model.has_tied_embeddings and found.plan.dtype == "float16"


@pytest.mark.parametrize("kinds", ["a2a+p2p", "p2p a2a"])
def test_kinds_of_context_parallelism_that_a_plan_cannot_say_are_listed(kinds: str) -> None:
    found = read(BASE + f"--context-parallel-size 2 --cp-comm-type {kinds}")
    assert found.plan.context == "ring"
    assert {option.name: option.value for option in found.unknown} == {"--cp-comm-type": kinds}


def test_every_option_is_in_exactly_one_list() -> None:
    found = read(
        BASE + "--lr 1e-4 --save /x --rampup-batch-size 16 16 1000 --my-own-option 5 --log-throughput"
    )
    assert {option.name for option in found.irrelevant} == {"--lr", "--save", "--log-throughput"}
    unknown = {option.name: option for option in found.unknown}
    assert set(unknown) == {"--rampup-batch-size", "--my-own-option"}
    assert unknown["--rampup-batch-size"].value == "16 16 1000" and unknown["--my-own-option"].value == "5"
    assert "ramp" in unknown["--rampup-batch-size"].meaning


def test_how_blocks_are_recomputed_is_read_once_and_told_where_it_is_not_as_said() -> None:
    options = "--recompute-granularity full --recompute-method block --recompute-num-layers 3"
    names = [option.name for option in read(BASE + options).understood]
    assert all(names.count(word) == 1 for word in options.split() if word.startswith("--"))
    uniform = read(BASE + options.replace("block", "uniform"))
    assert uniform.plan.recompute_blocks == ()
    assert "--recompute-method uniform of 3 blocks is counted as every block" in uniform.assumptions
    short = read(BASE + options.removesuffix("--recompute-num-layers 3"))
    assert short.plan.recompute_blocks == (1,)
    assert "no --recompute-num-layers: one block of every stage" in short.assumptions


@pytest.mark.parametrize(
    ("said", "dispatch"),
    [
        ("", "copies"),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", "once"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "once"),
        ("--moe-token-dispatcher-type alltoall", "copies"),
    ],
)
def test_kernels_that_send_a_token_once_a_device(said: str, dispatch: str) -> None:
    assert read(f"{BASE} --num-experts 8 --expert-model-parallel-size 4 {said}").plan.dispatch == dispatch


def test_experts_may_be_whole_on_devices_of_tensor_parallelism_and_their_tokens_overlap() -> None:
    experts = (
        "--num-experts 8 --expert-model-parallel-size 4 --tensor-model-parallel-size 2 --sequence-parallel "
    )
    more = "--overlap-moe-expert-parallel-comm --expert-tensor-parallel-size "
    found = read(BASE + experts + more + "1")
    assert (found.plan.etp, found.plan.expert_tp) == (1, 1) and "ep" in found.plan.overlap
    assert not [option for option in found.unknown if "expert" in option.name]
    assert read(BASE + experts + more + "2").plan.etp == 0
    assert read(BASE + experts.replace("size 4", "size 1") + more + "1").plan.etp == 1
    assert read(BASE + experts + more + "4").plan.etp == 4, "an expert over more devices than attention"
    refused = read(BASE + experts + more + "3")
    assert "--expert-tensor-parallel-size" in {option.name for option in refused.unknown}


def test_corrections_of_routers_are_a_pass_where_routers_have_some() -> None:
    said = BASE + "--moe-router-enable-expert-bias --moe-router-bias-update-rate 2e-3 "
    deepseek = load_model("deepseek-v3").changed(num_layers=16)
    found = read(said, model=deepseek, cluster="16x8xH100", global_batch=256)
    assert found.plan.options_of("correct_routers") == {"rate": 2e-3}
    without = BASE + "--moe-router-enable-expert-bias"
    usual = read(without, model=deepseek, cluster="16x8xH100", global_batch=256)
    assert usual.plan.options_of("correct_routers") == {"rate": 1e-3}
    none = read(said + "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512")
    assert none.plan.passes == () and "--moe-router-bias-update-rate" in {x.name for x in none.irrelevant}
    with pytest.raises(PlanError, match="moe-router-bias-update-rate is"):
        read(
            without + " --moe-router-bias-update-rate many",
            model=deepseek,
            cluster="16x8xH100",
            global_batch=256,
        )


def test_what_a_recipe_says_of_experts_is_noted_with_its_option() -> None:
    """Losses and what drops tokens are a training's, and no plan's."""
    found = read(
        BASE
        + "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512 --moe-aux-loss-coeff 1e-2 --moe-z-loss-coeff 1e-3 "
        "--moe-expert-capacity-factor 1.5 --moe-pad-expert-input-to-capacity --moe-token-drop-policy probs"
    )
    noted = {option.name: option.meaning for option in found.irrelevant}
    assert noted["--moe-aux-loss-coeff"].endswith("meshwright train --balance-loss 1e-2")
    assert noted["--moe-z-loss-coeff"].endswith("meshwright train --z-loss 1e-3")
    assert noted["--moe-token-drop-policy"].endswith("meshwright train --drop-by probability")
    refused = {option.name: option.meaning for option in found.unknown}
    assert "train --capacity-factor" in refused["--moe-expert-capacity-factor"]
    assert "not padded" in refused["--moe-pad-expert-input-to-capacity"]


def test_graphs_of_parts_of_a_layer_are_not_understood() -> None:
    found = read(BASE + "--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router")
    assert {option.name for option in found.unknown} == {"--cuda-graph-impl", "--cuda-graph-scope"}
    assert found.plan.software == "fused"


@pytest.mark.parametrize(
    "text", ["pretrain.py $EXTRA " + BASE, BASE + "$EXTRA", BASE + "--seq-length 512 ${EXTRA[@]}"]
)
def test_a_variable_that_may_hold_options_is_listed(text: str) -> None:
    assert [option.name.strip("${}[@]") for option in read(text).unknown] == ["EXTRA"]


def test_the_world_comes_from_the_launcher() -> None:
    text = f"torchrun --nproc-per-node 8 --nnodes=2 train.py {BASE}"
    assert read(text, cluster="H100").plan.num_devices == 16
    assert read(text, cluster="H100", num_devices=32).plan.num_devices == 32
    found = read(text, cluster="4x8xH100")
    assert found.plan.num_devices == 32 and any("16 processes" in line for line in found.assumptions)


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        (BASE, {"cluster": ""}, ("--cluster",)),
        (BASE, {"cluster": "H100"}, ("--gpus",)),
        ("--num-layers 2 --bf16", {}, ("--hidden-size",)),
        ("--bf16 --seq-length 8", {}, ("--model",)),
        (BASE.replace("--seq-length 512", ""), {}, ("--seq",)),
        (BASE.replace("--vocab-size 1000", ""), {}, ("--vocab",)),
        (BASE + "--tensor-model-parallel-size $TP", {}, ("--set TP=", "--tensor-model-parallel-size")),
        (BASE + "--tensor-model-parallel-size 3", {}, ("tp(3)", "16 devices")),
        (BASE + "--num-experts 8 --expert-model-parallel-size 3", {}, ("ep(3)", "expert degrees")),
        (BASE + "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5", {}, ("chunks of 5",)),
        (BASE, {"num_devices": 8}, ("--gpus 8", "16 devices")),
        ("echo hello", {}, ("no options",)),
    ],
)  # fmt: skip
def test_what_is_missing_is_told_with_its_flag(
    text: str, given: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(PlanError) as told:
        read(text, **given)
    assert all(word in str(told.value) for word in words), str(told.value)


def test_a_script_variable_can_be_given() -> None:
    assert plan("--tensor-model-parallel-size $TP", variables={"TP": "2"}).tp == 2


@pytest.mark.parametrize(
    "text",
    [
        f'ARGS="{BASE}"',
        f'srun -N 2 bash -c "cd x; python -u pretrain_gpt.py {BASE}"',
        BASE.replace(" --", "\n--"),
    ],
)
def test_options_are_found_wherever_a_script_has_them(text: str) -> None:
    assert read(text).plan.model.num_layers == 12
