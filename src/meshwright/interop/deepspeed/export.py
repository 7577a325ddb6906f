"""Writes a plan as a DeepSpeed configuration (JSON); model, cluster and sequence length are in its caller's hands.

Facts from the configuration's documentation and `deepspeed/runtime/engine.py`: overlap_comm acts within ZeRO only; AutoTP
goes with stages 0 to 2 and so does AutoEP.
"""

from __future__ import annotations

import json
from typing import Any

from meshwright.interop.deepspeed.config import DTYPES, SHARDINGS, SOFTWARE
from meshwright.interop.exported import Export, Exported
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan

SHORT_DTYPES = {long: short for short, long in DTYPES.items()}
LEFT_OPEN = (
    "the model, the cluster and the sequence length: the program that calls DeepSpeed says them",
    "optimizer, learning rate, data and how long to train",
)


def export_deepspeed(plan: Plan, cluster: ClusterSpec) -> Exported:
    """The JSON. Raises ExportError with every choice that DeepSpeed has no key for."""
    export = Export.begin("deepspeed", plan, SOFTWARE)
    _check_degrees(export)
    _check_sharding(export)
    _check_precision(export)
    _check_rest(export)
    export.finish()
    text = json.dumps(_config(export), indent=2) + "\n"
    return Exported(
        "deepspeed", text, export.digest, ".json", _left_open(export.plan), tuple(export.assumptions)
    )


def _left_open(plan: Plan) -> tuple[str, ...]:
    recompute = ("the model's code has to call DeepSpeed's checkpointing for every block",)
    return LEFT_OPEN + (recompute if plan.recompute == "full" else ())


def _check_degrees(export: Export) -> None:
    plan = export.plan
    for name in ("pp", "cp"):
        degree = getattr(plan, name)
        reason = "the configuration has no such degree; the model's code would have to be split"
        export.need(degree == 1, f"{name} = {degree}", reason)
    export.need(
        (plan.schedule, plan.num_chunks) == ("1f1b", 1),
        f'schedule = "{plan.schedule}", {plan.num_chunks} chunks',
        "the configuration has no schedule: microbatches run one after the other",
    )
    export.need(
        not plan.sequence_parallel, "sequence_parallel = true", "AutoTP keeps norms and residuals whole"
    )
    export.check_experts()
    export.need(
        not export.plan.model.num_experts or export.plan.expert_tp in (1, export.plan.tp),
        f"etp = {export.plan.expert_tp}",
        "no option divides an expert over devices of its own",
    )
    export.need(
        plan.ep == 1 or plan.tp == 1,
        f"ep = {plan.ep} with tp = {plan.tp}",
        "its automatic expert parallelism takes whole layers",
    )


def _check_sharding(export: Export) -> None:
    plan = export.plan
    export.need(
        not plan.sharding_degree,
        f"sharding_degree = {plan.sharding_degree}",
        "ZeRO shards over all data-parallel ranks",
    )
    for name in ("tp", "ep"):
        degree = getattr(plan, name)
        export.need(
            plan.sharding != "zero3" or degree == 1,
            f'{name} = {degree} with sharding = "zero3"',
            "it goes with ZeRO stages 0 to 2 only",
        )
    shown = f"overlap = {', '.join(plan.overlap) or 'nothing'}"
    export.need("tp" not in plan.overlap, shown, "AutoTP waits for its reductions")
    found = tuple(name for name in plan.overlap if name != "tp")
    allowed = {
        "none": ((),), "zero1": ((), ("reduce",)), "zero2": ((), ("reduce",)), "zero3": ((), ("reduce", "gather")),
    }[plan.shared.zero]  # fmt: skip
    reasons = {
        "none": "without ZeRO gradients are reduced after the backward pass",
        "zero3": "overlap_comm is for both directions or for none",
    }
    export.need(found in allowed, shown, reasons.get(plan.sharding, "parameters are gathered after the step"))


def _check_precision(export: Export) -> None:
    plan = export.plan
    export.one_of("dtype", DTYPES.values(), f"it trains in {', '.join(DTYPES.values())}")
    export.one_of("float8", ("",), "it has no float8 products")
    export.check_float32_copies()
    export.need(
        plan.dtype != "float16" or plan.reduction_dtype != "float32" or plan.sharding != "none",
        'reduction_dtype = "float32"',
        "without ZeRO its fp16 optimizer sums gradients in float16",
    )


def _check_rest(export: Export) -> None:
    export.one_of("recompute", ("none", "full"), "the configuration knows recompute of whole blocks only")
    export.check_all_blocks()
    export.one_of("attention", ("flash",), "attention is in the model's code")
    export.one_of("dispatch", (Plan.dispatch,), "it sends tokens once for each of their experts")
    export.one_of("software", (SOFTWARE,), f"it is counted as {SOFTWARE}")


def _config(export: Export) -> dict[str, Any]:
    plan = export.plan
    reduced = SHORT_DTYPES[plan.reduction_dtype]
    config: dict[str, Any] = {
        # JSON has no comments; a monitor that is off carries the name of the plan.
        "tensorboard": {"enabled": False, "job_name": f"meshwright-plan-{export.digest}"},
        "train_batch_size": plan.workload.global_batch,
        "train_micro_batch_size_per_gpu": plan.microbatch_size,
        "gradient_accumulation_steps": plan.num_microbatches,
        "bf16": {"enabled": plan.dtype == "bfloat16"},
        "fp16": {"enabled": plan.dtype == "float16"},
        "data_types": {"grad_accum_dtype": reduced},
        "communication_data_type": reduced,
        "zero_optimization": {
            "stage": SHARDINGS.index(plan.shared.zero),
            "overlap_comm": "reduce" in plan.overlap,
        },
    }
    if plan.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.ep > 1:
        config["expert_parallel"] = {"enabled": True, "autoep_size": plan.ep}
    if plan.recompute == "full":
        config["activation_checkpointing"] = {"partition_activations": False, "cpu_checkpointing": False}
    return config
