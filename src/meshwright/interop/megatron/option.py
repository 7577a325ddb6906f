"""Names of Megatron-LM's options that change neither the time nor the memory of a step, by what they are about.

From `megatron/training/arguments.py` and the option classes it reads, releases of 2024 to 2026.
"""

from __future__ import annotations

from collections.abc import Mapping

# The order of the mesh with --use-tp-pp-dp-mapping, outermost first: ranks "tp-cp-ep-pp-dp" instead of "tp-cp-ep-dp-pp".
PIPELINE_INSIDE = ("dp", "pp", "cp", "tp")

_TOPICS: Mapping[str, str] = {
    "names of programs and places": """
        local-rank node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id rdzv-conf log-dir tee redirects
        max-restarts standalone role distributed-backend distributed-timeout-minutes distributed-timeout-seconds-after-init
        lazy-mpu-init nccl-communicator-config-path disable-gloo-process-groups use-gloo-process-groups config-logger-dir
        use-mcore-models use-legacy-models spec no-initialization use-cpu-initialization init-model-with-meta-device
        enable-experimental te-rng-tracker inference-rng-tracker transformer-pipeline-model-parallel-size
        cuda-graph-warmup-steps""",
    "optimizer and learning rate": """
        lr lr-decay-style lr-wsd-decay-style lr-decay-iters lr-decay-samples lr-wsd-decay-samples lr-wsd-decay-iters
        lr-warmup-fraction lr-warmup-iters lr-warmup-samples lr-warmup-init min-lr warmup decoupled-lr decoupled-min-lr
        override-opt-param-scheduler override-opt_param-scheduler use-checkpoint-opt-param-scheduler
        use-checkpoint-opt_param-scheduler weight-decay start-weight-decay end-weight-decay weight-decay-incr-style clip-grad
        adam-beta1 adam-beta2 adam-eps sgd-momentum apply-wd-to-qk-layernorm no-weight-decay-cond-type
        loss-scale initial-loss-scale min-loss-scale loss-scale-window hysteresis""",
    "initial values and regularization": """
        seed data-parallel-random-init init-method-std embedding-init-method-std init-method-xavier-uniform
        attention-dropout hidden-dropout norm-epsilon layernorm-epsilon apply-layernorm-1p apply-query-key-layer-scaling
        no-query-key-layer-scaling apply-residual-connection-post-layernorm""",
    "positions of tokens": """
        rotary-base rotary-percent rotary-interleaved rotary-seq-len-interpolation-factor use-rotary-position-embeddings
        use-rope-scaling rope-scaling-factor rope-type rotary-scaling-factor original-max-position-embeddings mscale
        mscale-all-dim beta-fast beta-slow yarn-original-max-position-embeddings yarn-beta-fast yarn-beta-slow
        yarn-correction-range-round-to-int mrope-section no-position-embedding""",
    "data and tokenizer": """
        data-path train-data-path valid-data-path test-data-path data-args-path per-split-data-args-path split mock-data
        data-cache-path no-mmap-bin-files num-workers dataloader-type no-create-attention-mask-in-dataloader
        create-attention-mask-in-dataloader reset-position-ids reset-attention-mask eod-mask-loss
        num-dataset-builder-threads object-storage-cache-path mid-level-dataset-surplus tokenizer-type tokenizer-model
        tokenizer-metadata tokenizer-prompt-format tiktoken-pattern tiktoken-num-special-tokens tiktoken-special-tokens
        vocab-file merge-file vocab-extra-ids legacy-tokenizer trust-remote-code sample-rate mask-prob short-seq-prob
        dataloader-fast-cache-load per-dataset-sequences-path""",
    "how long to train": """
        train-iters train-samples exit-interval exit-duration-in-mins exit-signal-handler exit-signal iterations-to-skip
        eval-iters eval-interval eval-global-batch-size eval-micro-batch-size skip-train full-validation test-mode
        multiple-validation-sets decrease-batch-size-if-needed""",
    "checkpoints": """
        save load save-interval persistent-save-interval save-retain-interval no-save-optim no-save-rng no-load-optim
        no-load-rng load-main-params-from-ckpt no-strict-fsdp-dtensor-load non-persistent-save-interval
        non-persistent-ckpt-type non-persistent-global-ckpt-dir non-persistent-local-ckpt-dir non-persistent-local-ckpt-algo
        finetune pretrained-checkpoint ckpt-step use-checkpoint-args use-mp-args-from-checkpoint-args
        no-use-tokenizer-model-from-checkpoint-args exit-on-missing-checkpoint use-dist-ckpt dist-ckpt-format
        dist-ckpt-workers use-persistent-ckpt-worker auto-detect-ckpt-format ckpt-format ckpt-convert-format
        ckpt-convert-save ckpt-fully-parallel-save no-ckpt-fully-parallel-save async-save async-strategy
        ckpt-fully-parallel-load ckpt-assume-constant-structure dist-ckpt-strictness override-ckpt-iteration
        dist-ckpt-save-pre-mcore-014 dist-ckpt-optim-fully-reshardable replication replication-jump replication-factor""",
    "logging and profiling": """
        log-interval log-params-norm log-num-zeros-in-grad log-throughput log-progress log-energy log-straggler
        log-memory-interval log-device-memory-used log-max-attention-logit timing-log-level timing-log-option
        no-barrier-with-level-1-timing tensorboard-dir tensorboard-log-interval tensorboard-queue-size
        log-timers-to-tensorboard log-batch-size-to-tensorboard no-log-learnig-rate-to-tensorboard
        no-log-loss-scale-to-tensorboard log-validation-ppl-to-tensorboard log-memory-to-tensorboard
        log-world-size-to-tensorboard wandb-project wandb-entity wandb-exp-name wandb-save-dir logging-level
        enable-one-logger no-one-logger one-logger-project one-logger-entity one-logger-run-name one-logger-async
        app-tag-run-name app-tag-run-version moe-per-layer-logging profile profile-step-start profile-step-end
        profile-ranks use-pytorch-profiler use-nsys-profiler record-memory-history memory-snapshot-path
        pytorch-profiler-collect-shapes pytorch-profiler-collect-callstack nvtx-ranges
        straggler-ctrlr-port straggler-minmax-count disable-straggler-on-startup""",
    "checks and restarts": """
        no-check-for-nan-in-loss-and-grad check-for-nan-in-loss-and-grad check-for-spiky-loss check-for-large-grads
        check-weight-hash-across-dp-replicas-interval train-sync-interval error-injection-rate error-injection-type
        rerun-mode enable-ft-package calc-ft-timeouts ft-num-warmup-iters adlr-autoresume adlr-autoresume-interval
        inprocess-restart run-workload-inspector-server manual-gc manual-gc-interval no-manual-gc-eval
        disable-manual-gc-eval empty-unused-memory-level""",
    "how tokens are routed and balanced": """
        moe-router-load-balancing-type moe-router-score-function
        moe-router-pre-softmax moe-router-num-groups moe-router-group-topk moe-router-topk-scaling-factor
        moe-router-enable-expert-bias moe-router-bias-update-rate moe-router-dtype moe-input-jitter-eps
        moe-router-force-load-balancing moe-router-topk-limited-devices moe-use-upcycling
        moe-upcycling-granularity""",
}  # fmt: skip

IRRELEVANT: Mapping[str, str] = {name: topic for topic, names in _TOPICS.items() for name in names.split()}

# Options that change a step but that a plan has no field for: each is listed as not understood, with this reason.
NOT_IN_A_PLAN: Mapping[str, str] = {
    "rampup-batch-size": "the batch of a plan is that after the ramp",
    "step-batch-size-schedule": "the batch of a plan is that after the schedule",
    "pipeline-model-parallel-layout": "layers are split evenly instead",
    "distribute-saved-activations": "kept inputs are whole on every tensor-parallel rank",
    "cpu-offloading-num-layers": "activations stay on the device",
    "optimizer-cpu-offload": "the optimizer stays on the device",
    "optimizer-offload-fraction": "the optimizer stays on the device",
    "fp4-format": "no 4-bit products; counted in the format that is given otherwise",
    "mtp-num-layers": "the multi-token prediction layers are left out",
    "moe-shared-expert-overlap": "the shared expert is not overlapped with the exchange of tokens",
    "delay-wgrad-compute": "weight gradients are computed in the backward pass",
    "overlap-param-gather-with-optimizer-step": "parameters are gathered after the step",
    "enable-cuda-graph": "launches are counted",
    "cuda-graph-impl": "launches are counted",
    "external-cuda-graph": "launches are counted",
    "cuda-graph-scope": "launches are counted, unless one graph holds the whole step (full_iteration)",
    "cuda-graph-modules": "launches are counted",
    "first-last-layers-bf16": "all blocks have one precision",
    "num-layers-at-start-in-bf16": "all blocks have one precision",
    "num-layers-at-end-in-bf16": "all blocks have one precision",
    "defer-embedding-wgrad-compute": "the head's weight gradient is computed in the backward pass",
    "wgrad-deferral-limit": "the head's weight gradient is computed in the backward pass",
    "fp8-param-gather": "parameters are gathered in the plan's format",
    "window-size": "every block sees the whole sequence",
    "window-attn-skip-freq": "every block sees the whole sequence",
    "standalone-embedding-stage": "the embedding is on the first stage",
    **dict.fromkeys(
        (
            *(
                "no-masked-softmax-fusion",
                "no-bias-gelu-fusion",
                "no-bias-swiglu-fusion",
                "no-bias-dropout-fusion",
            ),
            *("no-rope-fusion", "no-persist-layer-norm", "no-gradient-accumulation-fusion"),
            *("no-async-tensor-model-parallel-allreduce", "no-overlap-p2p-communication"),
        ),
        "fused kernels and overlapped messages are assumed",
    ),
    **dict.fromkeys(
        (
            *(
                "moe-ffn-hidden-size",
                "moe-router-topk",
                "moe-shared-expert-intermediate-size",
                "moe-layer-freq",
            ),
            *(
                "qk-head-dim",
                "qk-pos-emb-head-dim",
                "v-head-dim",
                "kv-lora-rank",
                "q-lora-rank",
                "num-query-groups",
            ),
        ),
        "counts only with --num-experts, --multi-latent-attention or --group-query-attention, which is not there",
    ),
    "hybrid-layer-pattern": "all layers are transformer blocks",
    "hybrid-override-pattern": "all layers are transformer blocks",
}

# Options that ask for what is assumed anyway.
AS_ASSUMED: tuple[str, ...] = (
    *("moe-grouped-gemm", "moe-permute-fusion", "moe-router-fusion"),
    *("cross-entropy-loss-fusion", "cross-entropy-fusion-impl", "attention-softmax-in-fp32"),
    *("overlap-p2p-communication-warmup-flush", "high-priority-stream-groups", "calculate-per-token-loss"),
    *("ddp-bucket-size", "ddp-num-buckets", "ddp-average-in-collective", "no-align-grad-reduce"),
)
