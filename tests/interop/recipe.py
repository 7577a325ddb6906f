"""Six public recipes, written from their documentation, with the step time that was published for each.

Facts are cited, no file is copied. None of the numbers is a row of the calibration tables, and none may be fitted.

- dgxc: NVIDIA/dgxc-benchmarking, tag v24.11.1: README_8b.md, README_70b.md (llama3.1), README_175b.md
  (nemo_megatron), README_314b.md (grok1): "Training step time (seconds per step)" on DGX H100, BF16, of the last step;
  degrees from the tables' headings; no recompute, distributed optimizer, gradients reduced in BF16, overlaps from the
  same folders' YAML with the overrides of their configure.sh.
- trainy: pytorch/torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md: tokens per second of one GPU.
- issue 1789: pytorch/torchtitan, issue "DeepSeek-V3-16B OOMs on 8 x H100 80GB HBM3", the log in its text. Its clock
  and its tokens per second give 4 sequences of 4,096 tokens a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

_LAUNCH = """
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]}
"""

LLAMA_8B = (
    """#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-1}
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
    --vocab-size 128256
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 128 --bf16 --grad-reduce-in-bf16
    --train-iters 100 --lr 1e-4   # not of interest here
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 1 --context-parallel-size 2
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
"""
    + _LAUNCH
)

LLAMA_70B = """
export GPUS_PER_NODE=8
NUM_NODES=8
MODEL_ARGS="--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \\
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \\
    --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear \\
    --untie-embeddings-and-output-weights --vocab-size 128256"
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size 128 --bf16 --grad-reduce-in-bf16"
PARALLEL_ARGS="--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --context-parallel-size 2 \\
    --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel --tp-comm-overlap \\
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --defer-embedding-wgrad-compute"
torchrun --nproc_per_node=$GPUS_PER_NODE --nnodes=$NUM_NODES pretrain_gpt.py $MODEL_ARGS $TRAINING_ARGS $PARALLEL_ARGS
"""

GPT_175B = """
--num-layers 96
--hidden-size 12288
--num-attention-heads 96
--seq-length 2048
--max-position-embeddings 2048
--tokenizer-type GPT2BPETokenizer
--micro-batch-size 1
--global-batch-size 256
--bf16
--grad-reduce-in-bf16
--tensor-model-parallel-size 4
--pipeline-model-parallel-size 8
--num-layers-per-virtual-pipeline-stage 1
--sequence-parallel
--tp-comm-overlap
--use-distributed-optimizer
--overlap-grad-reduce
--overlap-param-gather
"""

GROK_1 = (
    """
GPUS_PER_NODE=8; NUM_NODES=64
TP=4; PP=8; CP=2; EP=8
MODEL_ARGS=(
    --num-layers 64 --hidden-size 6144 --ffn-hidden-size 32768 --num-attention-heads 48
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 32768 --position-embedding-type rope
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
    --vocab-size 128256
    --num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 1e-2 --moe-token-dispatcher-type alltoall
    --moe-expert-capacity-factor 1.0 --moe-pad-expert-input-to-capacity
)
TRAINING_ARGS=( --micro-batch-size 1 --global-batch-size 1024 --bf16 --grad-reduce-in-bf16 )
PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
    --context-parallel-size ${CP} --expert-model-parallel-size "$EP"
    --num-virtual-stages-per-pipeline-rank $(($PP * 1)) --sequence-parallel --tp-comm-overlap
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --overlap-param-gather-with-optimizer-step
)
"""
    + _LAUNCH
)

TITAN_8B = """
[model]
name = "llama3"
flavor = "8B"
converters = ["quantize.linear.float8"]

[training]
local_batch_size = 2
seq_len = 8192
steps = 2000
compile = true

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
precompute_float8_dynamic_scale_for_fsdp = true
force_recompute_fp8_weight_in_bwd = true
filter_fqns = ["output"]

[metrics]
enable_wandb = true
"""

TITAN_16B = """
[model]
name = "deepseek_v3"
flavor = "16B"

[optimizer]
name = "AdamW"
lr = 2.2e-4

[training]
local_batch_size = 4
seq_len = 4096
dataset = "c4"

[parallelism]
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "default"
expert_parallel_degree = 8
expert_tensor_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[compile]
enable = true
components = ["loss"]
"""


@dataclass(frozen=True)
class Recipe:
    """A configuration, where it ran, and what was published of it."""

    name: str
    form: str
    text: str
    cluster: str
    published_s: float
    source: str
    unknown: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """Of its file."""
        return {"megatron": ".sh", "torchtitan": ".toml"}[self.form]


def _of_rate(sequences: int, length: int, tokens_per_s: float) -> float:
    """Seconds of a step of one rank's sequences at a published rate of tokens per GPU."""
    return sequences * length / tokens_per_s


RECIPES = (
    Recipe("llama-3.1-8b", "megatron", LLAMA_8B, "8xH100", 12.91, "dgxc v24.11.1, llama3.1/README_8b.md"),
    Recipe(
        "llama-3.1-70b", "megatron", LLAMA_70B, "8x8xH100", 14.72, "dgxc v24.11.1, llama3.1/README_70b.md",
        ("--defer-embedding-wgrad-compute",),
    ),
    Recipe("gpt3-175b", "megatron", GPT_175B, "16x8xH100", 8.91, "dgxc v24.11.1, nemo_megatron/README_175b.md"),
    Recipe(
        "grok-1-314b", "megatron", GROK_1, "64x8xH100", 20.83, "dgxc v24.11.1, grok1/README_314b.md",
        (
            "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity",
            "--overlap-param-gather-with-optimizer-step",
        ),
    ),
    Recipe(
        "llama-3.1-8b float8", "torchtitan", TITAN_8B, "4x8xH200", _of_rate(2, 8192, 10_938.0),
        "torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md, 4 nodes",
    ),
    Recipe(
        # The median of the log's four lines after the first step: 11,636 11,758 11,533 11,254 tokens/s.
        "deepseek-v3-16b", "torchtitan", TITAN_16B, "8xH100", _of_rate(4, 4096, (11_636 + 11_533) / 2),
        "torchtitan, issue 1789",
    ),
)  # fmt: skip
