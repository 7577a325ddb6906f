"""Configurations that people run today, written after the public documentation of each program; none is copied.

Options of Megatron-LM are those of `megatron/training/arguments.py`, keys of torchtitan those of
`torchtitan/config/job_config.py`, keys of DeepSpeed those of its configuration's documentation.
"""

from __future__ import annotations

import json

# Llama 3.1 8B on two nodes; every layer split over all devices of a node, attention recomputed.
MEGATRON = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${NNODES:-2}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES
    --master_addr $MASTER_ADDR --master_port $MASTER_PORT
)
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 500000 --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights --vocab-size 128256
)
TRAINING_ARGS=(
    --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --train-iters 5000 --lr 3e-4
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 1
    --use-distributed-optimizer --recompute-activations
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]}
"""

# The same model on one node: tensor parallelism that it does not need, everything recomputed.
TORCHTITAN = """[job]
description = "continued pretraining"

[model]
name = "llama3"
flavor = "8B"

[optimizer]
name = "AdamW"
lr = 3e-4

[training]
local_batch_size = 1
global_batch_size = 32
seq_len = 4096
steps = 1000

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 4

[activation_checkpoint]
mode = "full"

[compile]
enable = true
"""

# ZeRO-3 for a model that fits with less.
DEEPSPEED = json.dumps({
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_optimization": {"stage": 3, "overlap_comm": False},
    "activation_checkpointing": {"partition_activations": False},
}, indent=2)  # fmt: skip
