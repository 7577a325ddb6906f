"""What an import found of the software: each trait that a plan keeps, and whether the file says so or the software does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.specs.model.layers import split_layers
from meshwright.specs.plan.plan import Plan
from meshwright.specs.stack.traits import Traits

# Field of a plan that keeps a trait -> options that decide it, of any of the forms; those of one form are nobody else's.
DECIDED_BY: Mapping[str, tuple[str, ...]] = {
    "software": ("--enable-cuda-graph", "--cuda-graph-impl", "--cuda-graph-scope", "compile.enable", "compile.components"),
    "overlap": (
        *("--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap", "--overlap-moe-expert-parallel-comm"),
        *("parallelism.enable_async_tensor_parallel", "zero_optimization.overlap_comm"),
    ),
    "sharding": (
        *("--use-distributed-optimizer", "--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp"),
        *("--data-parallel-sharding-strategy", "parallelism.data_parallel_shard_degree"),
        *("parallelism.fsdp_reshard_after_forward", "zero_optimization.stage"),
    ),
    "reduction_dtype": (
        *("--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32", "training.mixed_precision_reduce"),
        *("data_types", "communication_data_type"),
    ),
    "attention": ("--attention-backend", "--transformer-impl", "--use-flash-attn", "--attention-dropout"),
    "layers_per_stage": (
        *("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
        *("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"),
        *("parallelism.pipeline_parallel_first_stage_less_layers", "parallelism.pipeline_parallel_layers_per_stage"),
        "parallelism.pipeline_parallel_last_stage_less_layers",
    ),
    "etp": ("--expert-tensor-parallel-size", "parallelism.expert_tensor_parallel_degree"),
    "dispatch": ("--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend", "--moe-enable-deepep"),
}  # fmt: skip


@dataclass(frozen=True)
class FoundTrait:
    """One trait: the plan's field that keeps it, its value in words, and the options that said so; none: the software."""

    name: str
    value: str
    said_by: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        return {"name": self.name, "value": self.value, "said_by": list(self.said_by)}


def found_traits(plan: Plan, understood: Sequence[str]) -> tuple[FoundTrait, ...]:
    """The traits of a plan that was read from options of these names; of pipelines and experts only where there are some."""
    is_uneven = plan.layers_per_stage != split_layers(plan.model.num_layers, len(plan.layers_per_stage))
    values = {
        "software": plan.software, "overlap": ", ".join(plan.overlap) or "nothing", "sharding": plan.sharding,
        "reduction_dtype": plan.reduction_dtype or plan.dtype, "attention": plan.attention,
        "layers_per_stage": ("unevenly" if is_uneven else "evenly") if plan.pp > 1 else "",
        "etp": _expert_text(plan) if plan.model.num_experts else "",
        "dispatch": plan.dispatch if plan.ep > 1 else "",
    }  # fmt: skip
    said = {
        name: tuple(option for option in understood if option in options)
        for name, options in DECIDED_BY.items()
    }
    return tuple(FoundTrait(name, value, said[name]) for name, value in values.items() if value)


def open_question(traits: Sequence[FoundTrait], stack: Traits, where: str) -> str:
    """What the file leaves to the software, and where another answer goes; empty where it says everything."""
    left = [f"{trait.name} ({trait.value})" for trait in traits if not trait.said_by]
    if not left:
        return ""
    return f"{where} does not say {', '.join(left)}: as {stack.stack} does; what it does otherwise is a field of the plan"


def _expert_text(plan: Plan) -> str:
    """How an expert's matrices lie; over how many devices where these are not those of tensor parallelism."""
    if plan.expert_tp == 1:
        return "whole"
    return "divided" if plan.expert_tp == plan.tp else f"divided over {plan.expert_tp}"
