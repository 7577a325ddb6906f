"""Keys of torchtitan's TOML files: older spellings, flavors of models, and what changes no step.

From `torchtitan/config_manager.py` of 2024 and 2025 and `torchtitan/config/job_config.py` up to February 2026 (later
releases have no TOML).
"""

from __future__ import annotations

from collections.abc import Mapping

# (model.name, flavor) -> preset.
FLAVORS: Mapping[str, Mapping[str, str]] = {
    "llama2": {"7B": "llama-2-7b", "13B": "llama-2-13b", "70B": "llama-2-70b"},
    "llama3": {"8B": "llama-3.1-8b", "70B": "llama-3.1-70b", "405B": "llama-3.1-405b"},
    "deepseek_v3": {"16B": "deepseek-v2-lite", "671B": "deepseek-v3"},
    "qwen3": {
        "0.6B": "qwen3-0.6b", "1.7B": "qwen3-1.7b", "4B": "qwen3-4b", "8B": "qwen3-8b", "14B": "qwen3-14b",
        "32B": "qwen3-32b", "30B-A3B": "qwen3-30b-a3b", "235B-A22B": "qwen3-235b-a22b",
    },
    "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
}  # fmt: skip

# Older key -> today's.
RENAMED: Mapping[str, str] = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    **{
        f"{section}.{name}": f"parallelism.{name}"
        for section in ("training", "experimental")
        for name in (
            *("data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree"),
            *("pipeline_parallel_degree", "pipeline_parallel_schedule", "pipeline_parallel_microbatches"),
            *("pipeline_parallel_split_points", "context_parallel_degree", "enable_async_tensor_parallel"),
            *("enable_compiled_autograd", "pipeline_parallel_schedule_csv", "context_parallel_rotate_method"),
        )
    },
    **{
        f"float8.{name}": f"quantize.linear.float8.{name}"
        for name in (
            *(
                "enable_float8_linear",
                "enable_fsdp_float8_all_gather",
                "precompute_float8_dynamic_scale_for_fsdp",
            ),
            *("force_recompute_fp8_weight_in_bwd", "recipe_name", "filter_fqns", "emulate"),
        )
    },
    "mx.recipe_name": "quantize.linear.mx.recipe_name",
    "mx.filter_fqns": "quantize.linear.mx.filter_fqns",
}

# Whole tables, and keys of others, that change neither the time nor the memory of a step.
IRRELEVANT_TABLES: Mapping[str, str] = {
    "job": "names of files",
    "profiling": "profiling",
    "metrics": "logging",
    "lr_scheduler": "learning rate",
    "checkpoint": "checkpoints",
    "comm": "timeouts",
    "memory_estimation": "another program",
    "validation": "validation",
    "debug": "debugging",
}
IRRELEVANT: Mapping[str, str] = {
    **dict.fromkeys(
        ("model.hf_assets_path", "model.tokenizer_path", "model.print_after_conversion", "model.norm_type"),
        "names of files",
    ),
    **{
        f"optimizer.{name}": "optimizer"
        for name in ("name", "lr", "eps", "beta1", "beta2", "weight_decay", "implementation", "fused")
    },
    **{
        f"training.{name}": "data and length of training"
        for name in (
            *(
                "steps",
                "dataset",
                "dataset_path",
                "max_norm",
                "seed",
                "deterministic",
                "warmup_steps",
                "gc_freq",
                "gc_debug",
            ),
            "dataloader",
        )
    },
    "activation_checkpoint.preserve_rng_state": "randomness",
    "activation_checkpoint.determinism_check": "checks",
    "activation_checkpoint.debug": "checks",
    "activation_checkpoint.early_stop": "recompute",
    "compile.backend": "compiler",
    "quantize.linear.float8.filter_fqns": "products that stay in the plan's format are the vocabulary head's",
    "quantize.linear.mx.filter_fqns": "products that stay in the plan's format are the vocabulary head's",
    "experimental.custom_args_module": "names of files",
}

# What changes a step but has no field in a plan.
NOT_IN_A_PLAN: Mapping[str, str] = {
    "training.enable_cpu_offload": "everything stays on the device",
    "optimizer.early_step_in_backward": "the optimizer steps after the backward pass",
    "parallelism.enable_compiled_autograd": "the backward pass is as without",
    "parallelism.pipeline_parallel_schedule_csv": "load the CSV itself: simulate --schedule FILE.csv",
    "parallelism.pipeline_parallel_split_points": "layers are split evenly instead",
    "parallelism.module_fqns_per_model_part": "layers are split evenly instead",
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns": "every second product is kept",
    "quantize.grouped_mm": "experts compute in the plan's format",
    "fault_tolerance": "no replicas beyond data parallelism",
    "experimental.custom_import": "code of the user's own",
}
