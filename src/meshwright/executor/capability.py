"""What the executor runs: of a plan, and of a model. Every plan and model can be planned and simulated."""

from __future__ import annotations

from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.rotary_scaling import ROTARY_SCALINGS
from meshwright.specs.plan.plan import CONNECT_STAGES, SHARE_CHOICES, Plan
from meshwright.stage.chain.degrees import recomputed_in_segments
from meshwright.stage.mesh import folds_experts

EXECUTED_DTYPES = ("float32", "float64", "bfloat16")  # float16 would need its loss scaled


def check_plan(plan: Plan) -> None:
    """Raise PlanError where the plan asks for what there are no handlers for, SpecError where its model does."""
    missing: list[str] = []
    defaults = {"float8": "", "attention": "flash"}
    missing += [
        f"{name}={getattr(plan, name)}" for name, value in defaults.items() if getattr(plan, name) != value
    ]
    plan.context_parallel.check(plan.model, plan.tp, plan.workload.sequence_length)
    lengths = {part.num_tokens // plan.cp for part in plan.parts}
    for num_tokens in sorted(each for each in lengths if plan.sequence_parallel and each % plan.tp):
        missing.append(f"tp={plan.tp} with {num_tokens} tokens of a sequence on a device")
    if plan.model.num_experts and folds_experts(plan) and plan.model.has_ladder_residual:
        missing.append(f"etp={plan.expert_tp}, ep={plan.ep} with a ladder residual")
    missing += _missing_with_vocabulary(plan)
    missing += _missing_with_edges(plan)
    missing += _missing_with_sinks(plan)
    missing += _missing_with_recompute(plan)
    if plan.dtype not in EXECUTED_DTYPES:
        missing.append(f"dtype={plan.dtype}")
    if missing:
        raise PlanError(
            f"the executor does not run {', '.join(missing)}",
            allowed="pp, dp, cp, tp, ep, etp, any sharding, any recompute (of all blocks), "
            + ", ".join(EXECUTED_DTYPES),
            next="simulate it, or change the plan",
        )
    check_model(plan.model)


def _missing_with_recompute(plan: Plan) -> list[str]:
    """What does not run of what is recomputed: R runs a stage's whole forward again, or segments of every block."""
    if plan.recompute_blocks not in ((), plan.layers_per_stage):
        return [f"recompute_blocks={plan.recompute_blocks}"]
    if plan.recompute in ("none", "full") or recomputed_in_segments(plan) != "none":
        return []
    beside = {
        f"ep={plan.ep}": plan.recompute == "selective_op" and plan.ep > 1,
        SHARE_CHOICES: plan.recompute == "selective_op" and plan.shared_choices != "none",
        f"vocabulary={plan.vocabulary}": plan.vocabulary != "ends",
        CONNECT_STAGES: plan.connects_stages,
    }
    return [
        f"recompute={plan.recompute} with {' and '.join(name for name, is_there in beside.items() if is_there)}"
    ]


def _missing_with_sinks(plan: Plan) -> list[str]:
    """What does not run of a model whose heads have sinks, and whose experts have biases (GPT-OSS)."""
    if not plan.model.has_attention_sinks:
        return []
    missing = {
        f"cp={plan.cp} with attention sinks": plan.cp > 1,
        f"parts_of={plan.parts_of} with attention sinks": len(plan.parts) > 1 and plan.parts_of != "samples",
        f"etp={plan.expert_tp} beside tp={plan.tp}, ep={plan.ep} with biases of experts": plan.expert_tp > 1
        and (plan.ep > 1 or plan.expert_tp != plan.tp),
    }
    return [what for what, is_there in missing.items() if is_there]


def _missing_with_vocabulary(plan: Plan) -> list[str]:
    """What does not run with a vocabulary that is split over the pipeline."""
    if plan.vocabulary == "ends" or plan.pp == 1:
        return []
    if plan.vocabulary == "interlaced" and plan.schedule != "1f1b":
        return [f"vocabulary=interlaced with schedule={plan.schedule}"]
    inside = [
        f"{name}={value}" for name, value in (("tp", plan.tp), ("cp", plan.cp), ("ep", plan.ep)) if value > 1
    ]
    return [f"vocabulary={plan.vocabulary} with {' and '.join(inside)}"] if inside else []


def _missing_with_edges(plan: Plan) -> list[str]:
    """What does not run with stages that are connected beside the path."""
    if not plan.connects_stages:
        return []
    degrees = (("tp", plan.tp), ("cp", plan.cp), ("ep", plan.ep))
    missing = [f"{name}={degree} with connect_stages" for name, degree in degrees if degree > 1]
    if plan.shared.divides_gradients:
        missing.append(f"sharding={plan.sharding} with connect_stages")
    if plan.model.hands_on_results:
        missing.append("a ladder residual or parallel branches with connect_stages")
    return missing


def unexecuted_features(model: ModelSpec) -> tuple[str, ...]:
    """What a model has that the executor's block has not; empty: it can be trained here."""
    scaling = model.rotary_scaling
    found = {
        "shared experts with biases": bool(model.experts and model.experts.has_bias),
        "experts that its groups do not divide": any(
            not each.routing_in(model.architecture).fits(each.num_experts, each.num_experts_per_token)
            for each in (block.experts for block in model.kinds)
            if each
        ),
        f"{model.architecture} blocks": model.is_gemma,
        f"{scaling and scaling.kind} rotary scaling": scaling is not None
        and scaling.kind not in ROTARY_SCALINGS,
    }
    return tuple(name for name, is_there in found.items() if is_there)


def check_model(model: ModelSpec) -> None:
    """Raise SpecError naming what the executor does not build, where there is such a thing."""
    missing = unexecuted_features(model)
    if missing:
        raise SpecError(
            f"{model.name} has {', '.join(missing)}, which the executor does not build",
            allowed="models of the GPT-2, Llama, Qwen, Mistral, Mixtral, DeepSeek and GPT-OSS families",
            next="plan and simulate it, or train another model",
        )
