"""Reads a DeepSpeed configuration (JSON) as a plan. It says nothing of the model, which the user gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meshwright.interop.imported import Draft, Given, Imported, Option
from meshwright.specs.data_text import json_of
from meshwright.specs.error import PlanError
from meshwright.specs.stack.traits import traits_of

SHARDINGS = ("none", "zero1", "zero2", "zero3")  # by zero_optimization.stage
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
SOFTWARE = traits_of(["deepspeed"]).fuses

IRRELEVANT: Mapping[str, str] = {
    **dict.fromkeys(
        ("optimizer", "scheduler", "gradient_clipping", "zero_allow_untested_optimizer"), "optimizer"
    ),
    **dict.fromkeys(
        (
            *(
                "steps_per_print",
                "wall_clock_breakdown",
                "dump_state",
                "tensorboard",
                "wandb",
                "csv_monitor",
                "comet",
            ),
            *("flops_profiler", "comms_logger", "memory_breakdown", "log_level"),
        ),
        "logging and profiling",
    ),
    **dict.fromkeys(
        ("checkpoint", "aio", "dataloader_drop_last", "sparse_gradients", "seed"), "files and data"
    ),
    **dict.fromkeys(
        ("prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op"), "scale of gradients"
    ),
}
# Inside zero_optimization and activation_checkpointing: buffers and details that a plan has no field for.
BUFFERS = (
    *(
        "allgather_partitions",
        "allgather_bucket_size",
        "reduce_scatter",
        "reduce_bucket_size",
        "contiguous_gradients",
    ),
    *(
        "round_robin_gradients",
        "load_from_fp32_weights",
        "grad_hooks",
        "stage3_max_live_parameters",
        "sub_group_size",
    ),
    *("stage3_max_reuse_distance", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"),
    *(
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
        "ignore_unused_parameters",
    ),
    *("log_trace_cache_warnings", "elastic_checkpoint", "stage3_module_granularity_threshold"),
)
NOT_IN_A_PLAN: Mapping[str, str] = {
    "zero_optimization.offload_param": "parameters stay on the device",
    "zero_optimization.offload_optimizer": "the optimizer stays on the device",
    "zero_optimization.cpu_offload": "the optimizer stays on the device",
    "zero_optimization.zero_hpz_partition_size": "no second copy of the parameters inside a node",
    "zero_optimization.zero_quantized_weights": "parameters are gathered in the plan's format",
    "zero_optimization.zero_quantized_gradients": "gradients are reduced in the plan's format",
    "activation_checkpointing.cpu_checkpointing": "kept inputs stay on the device",
    "activation_checkpointing.partition_activations": "kept inputs are whole on every tensor-parallel rank",
}


def import_deepspeed(text: str, where: str, given: Given) -> Imported:
    """The plan that a JSON file asks for, with its three lists. Raises PlanError naming the flag for what is missing."""
    try:
        config = json_of(text)
    except ValueError as error:
        raise PlanError(
            f"{where} is not JSON: {error}", allowed="a DeepSpeed configuration (.json)"
        ) from None
    if not isinstance(config, dict):
        raise PlanError(f"{where} holds a {type(config).__name__}", allowed="a JSON object")
    draft = Draft("deepspeed", where, given)
    reader = _Reader(draft, config)
    reader.read_batch()
    reader.read_precision()
    reader.read_sharding()
    reader.read_rest()
    draft.choices["software"] = SOFTWARE
    draft.fill()
    cluster = draft.cluster()
    reader.reconcile(draft.data_parallel(cluster.num_devices))
    return draft.finish(cluster)


class _Reader:
    """One configuration; what is read is taken out of `config`."""

    def __init__(self, draft: Draft, config: Mapping[str, Any]) -> None:
        self.draft, self.config = draft, dict(config)
        self.batch: dict[str, int | None] = {}

    def understood(self, name: str, value: Any, meaning: str) -> None:
        """Note a key that decided something."""
        self.draft.understood.append(Option(name, _shown(value), meaning))

    def _table(self, name: str) -> dict[str, Any]:
        """A table of the file, taken out of it; empty where it is not there. Raises PlanError for anything else."""
        value = self.config.pop(name, None)
        if value is not None and not isinstance(value, dict):
            raise PlanError(f"{self.draft.where}: {name} is {value!r}", allowed="an object with its keys")
        return dict(value or {})

    def _degree(self, table: dict[str, Any], name: str) -> int:
        """A degree of parallelism out of a table; 0 and nothing are 1."""
        value = table.pop(name, 1)
        if type(value) is not int or value < 0:
            raise PlanError(f"{self.draft.where}: {name} is {value!r}", allowed="a whole number from 1")
        return max(1, value)

    def read_batch(self) -> None:
        """Batch sizes; "auto" is filled in by another program and counts as not said."""
        for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
            value = self.config.pop(name, None)
            self.batch[name] = None
            if value == "auto":
                self.draft.irrelevant.append(Option(name, "auto", "said by the program that starts the job"))
            elif value is not None:
                if type(value) is not int or value < 1:
                    raise PlanError(
                        f"{self.draft.where}: {name} is {value!r}", allowed="a whole number from 1, or auto"
                    )
                self.batch[name] = value
                self.understood(name, value, "batch")

    def reconcile(self, dp: int) -> None:
        """train_batch_size = microbatch x accumulation x ranks: two of them give the third. Raises PlanError."""
        draft, micro = self.draft, self.batch["train_micro_batch_size_per_gpu"]
        micro = draft.given.microbatch_size or micro
        steps, whole = (
            self.batch["gradient_accumulation_steps"],
            draft.global_batch or self.batch["train_batch_size"],
        )
        draft.compare("--global-batch", draft.given.global_batch, self.batch["train_batch_size"])
        if micro is None and whole is not None:
            micro, rest = divmod(whole, dp * (steps or 1))
            if rest:
                raise PlanError(
                    f"{draft.where}: train_batch_size {whole} is not a multiple of {dp} ranks x {steps or 1} steps"
                )
        if micro is None:
            raise draft.missing("the batch", "--micro-batch", "train_micro_batch_size_per_gpu")
        expected = micro * (steps or 1) * dp
        if whole is not None and steps is not None and whole != expected and draft.given.global_batch is None:
            raise PlanError(
                f"{draft.where}: train_batch_size {whole} is not {micro} x {steps} x {dp} ranks = {expected}",
                allowed="sizes that agree, as DeepSpeed demands",
                next="add --gpus with the size of the job",
            )
        draft.choices["microbatch_size"] = micro
        draft.global_batch = whole or expected

    def read_precision(self) -> None:
        """bf16, fp16 or neither, and the format of gradients."""
        choices = self.draft.choices
        bf16, fp16 = (self._is_enabled(names) for names in (("bf16", "bfloat16"), ("fp16",)))
        choices["dtype"] = "bfloat16" if bf16 else "float16" if fp16 else "float32"
        choices["master_dtype"] = "float32" if bf16 or fp16 else ""
        kinds = self._table("data_types")
        accumulated = kinds.get("grad_accum_dtype") or self.config.get("communication_data_type")
        if kinds:
            self.understood("data_types", kinds, "reduction_dtype")
        if self.config.pop("communication_data_type", None):
            self.understood("communication_data_type", accumulated, "reduction_dtype")
        choices["reduction_dtype"] = DTYPES.get(str(accumulated), "")

    def _is_enabled(self, names: tuple[str, ...]) -> bool:
        for name in names:
            block = self._table(name)
            if block:
                self.understood(name, block, f"dtype, enabled: {block.get('enabled', False)}")
                if block.get("enabled") == "auto":
                    self.draft.assumptions.append(f"{name}.enabled is auto: counted as {name == 'bf16'}")
                    return name == "bf16"
                return bool(block.get("enabled", False))
        return False

    def read_sharding(self) -> None:
        """zero_optimization and tensor_parallel."""
        block = self._table("zero_optimization")
        stage = block.pop("stage", 0)
        if type(stage) is not int or stage not in range(len(SHARDINGS)):
            raise PlanError(
                f"{self.draft.where}: zero_optimization.stage is {stage!r}", allowed="0, 1, 2 or 3"
            )
        self.draft.choices["sharding"] = SHARDINGS[stage]
        self.understood("zero_optimization.stage", stage, f"sharding = {SHARDINGS[stage]}")
        # Stage 3 overlaps by default, the others do not.
        overlaps = block.pop("overlap_comm", stage == 3)
        self.draft.choices["overlap"] = (
            ("reduce", "gather") if overlaps and stage == 3 else ("reduce",) if overlaps else ()
        )
        self.understood("zero_optimization.overlap_comm", overlaps, "overlap")
        self._sort("zero_optimization", block)
        tensor = self._table("tensor_parallel")
        size = self._degree(tensor, "autotp_size")
        self.draft.degrees["tp"] = size
        if size > 1:
            self.understood("tensor_parallel.autotp_size", size, f"tp = {size}")
        self._sort("tensor_parallel", tensor)
        experts = self._table("expert_parallel")
        ep, is_on = self._degree(experts, "autoep_size"), experts.pop("enabled", True)
        self.draft.degrees["ep"] = ep if is_on else 1
        if self.draft.degrees["ep"] > 1:
            self.understood("expert_parallel.autoep_size", self.draft.degrees["ep"], "ep")
        self._sort("expert_parallel", experts)

    def read_rest(self) -> None:
        """Activation checkpointing, then everything that is left."""
        is_there, block = "activation_checkpointing" in self.config, self._table("activation_checkpointing")
        if is_there:
            self.draft.choices["recompute"] = "full"
            self.understood("activation_checkpointing", block, "recompute = full")
            self.draft.assumptions.append(
                "activation_checkpointing says how to recompute, the model's code whether: counted as every block"
            )
            self._sort("activation_checkpointing", block)
        pipeline = self._table("pipeline")
        if pipeline:
            self.draft.unknown.append(
                Option("pipeline", _shown(pipeline), "the model's code says how many stages; pp = 1")
            )
        for name, value in self.config.items():
            if name in IRRELEVANT:
                self.draft.irrelevant.append(Option(name, _shown(value), IRRELEVANT[name]))
            else:
                is_off = isinstance(value, dict) and value.get("enabled") is False
                target = self.draft.irrelevant if is_off else self.draft.unknown
                target.append(Option(name, _shown(value), "switched off" if is_off else "not known"))

    def _sort(self, table: str, block: Mapping[str, Any]) -> None:
        """Keys of a table that nobody read."""
        for key, value in block.items():
            name = f"{table}.{key}"
            is_off = value in (False, None, "none") or (
                isinstance(value, dict) and value.get("device") == "none"
            )
            if key in BUFFERS or is_off:
                self.draft.irrelevant.append(
                    Option(name, _shown(value), "switched off" if is_off else "buffers")
                )
            else:
                self.draft.unknown.append(Option(name, _shown(value), NOT_IN_A_PLAN.get(name, "not known")))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
