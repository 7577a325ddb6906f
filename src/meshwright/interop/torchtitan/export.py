"""Writes a plan as a torchtitan configuration (TOML).

Facts from `torchtitan/config/job_config.py`, `torchtitan/distributed/parallel_dims.py` and the pipeline's splitting rule,
releases of 2025: gradients are reduced in float32; without sharding there is plain data parallelism and nothing else; tensor
parallelism always divides sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.interop.exported import Export, Exported
from meshwright.interop.script_text import comment, toml_value
from meshwright.interop.torchtitan.config import CONTEXTS, DEGREES, INTERLEAVED_CHUNKS, SCHEDULES
from meshwright.interop.torchtitan.option import FLAVORS
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.config.source import load_model
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan

SOFTWARE = "compiled"
DTYPES = ("bfloat16", "float32")
LEFT_OPEN = (
    "the cluster: torchrun says how many processes there are",
    "data, tokenizer, optimizer, learning rate and checkpoints",
)
NAMES = {ours: theirs for theirs, ours in SCHEDULES.items()}
INTERLEAVED = "interleaved_1f1b"
MX_RECIPE = "mxfp8_cublas"
HEAD = "output"  # the vocabulary head's name, which stays out of float8

Tables = dict[str, dict[str, Any]]


def export_torchtitan(plan: Plan, cluster: ClusterSpec) -> Exported:
    """The TOML. Raises ExportError with every choice that torchtitan has no key for."""
    export = Export.begin("torchtitan", plan, SOFTWARE)
    tables: Tables = {"model": _model(export), "training": {}, "parallelism": {}}
    tables["parallelism"] |= {**_mesh(export), **_degrees(export), **_stage_keys(export)}
    tables["training"] = _training(export)
    tables["activation_checkpoint"] = _recompute(export)
    tables["compile"] = _compile(export)
    _add_float8(export, tables)
    export.finish()
    text = f"{comment(export.headline())}\n\n" + _toml(tables)
    return Exported("torchtitan", text, export.digest, ".toml", LEFT_OPEN, tuple(export.assumptions))


def flavor_of(model: ModelSpec) -> tuple[str, str] | None:
    """torchtitan's name and flavor of a model with these dimensions; None where it has none."""
    for name, flavors in FLAVORS.items():
        for flavor, preset in flavors.items():
            if load_model(preset).digest == model.digest:
                return name, flavor
    return None


def _model(export: Export) -> dict[str, Any]:
    found = flavor_of(export.plan.model)
    if found is None:
        reason = "torchtitan's file names a flavor, and none has these dimensions"
        export.refuse(f"model {export.plan.model.name}", reason)
        return {}
    return {"name": found[0], "flavor": found[1]}


def _mesh(export: Export) -> dict[str, Any]:
    """Copies and shards: a shard lies on dp_shard x cp devices."""
    plan = export.plan
    if plan.sharding == "none":
        export.need(plan.cp == 1, 'sharding = "none" with cp > 1', "parameters are sharded over cp, too")
        export.need(
            plan.dp == 1 or plan.tp == plan.pp == 1,
            'sharding = "none" with dp > 1',
            "whole copies (DDP) go with no other parallelism",
        )
        return {"data_parallel_replicate_degree": plan.dp, "data_parallel_shard_degree": 1}
    export.one_of("sharding", ("zero2", "zero3"), "FSDP shards gradients, too")
    shards, rest = divmod(plan.sharing_degree, plan.cp)
    if rest or plan.dp % shards or plan.sharing_degree == 1:
        reason = f"a copy lies on whole groups of cp({plan.cp}), and on more than one device"
        export.refuse(f"sharding_degree = {plan.sharing_degree}", reason)
        return {}
    return {
        "data_parallel_replicate_degree": plan.dp // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "never" if plan.sharding == "zero2" else "always",
    }


def _degrees(export: Export) -> dict[str, Any]:
    plan = export.plan
    export.check_experts()
    _check_expert_mesh(export)
    shown = f"sequence_parallel = {str(plan.sequence_parallel).lower()}"
    export.need(plan.sequence_parallel == (plan.tp > 1), shown, "tensor parallelism always divides sequences")
    step = 2 * plan.cp * plan.tp
    length = plan.workload.sequence_length
    export.need(
        length % step == 0, f"sequence_length = {length}", f"it takes multiples of 2 x cp x tp = {step}"
    )
    always = ({"reduce", "gather"} if plan.sharding != "none" else {"reduce"}) & set(_happening(plan))
    export.need(
        set(plan.overlap) - {"tp"} == always,
        f"overlap = {', '.join(plan.overlap) or 'nothing'}",
        f"it always overlaps {' and '.join(sorted(always)) or 'nothing else'} here",
    )
    found = {DEGREES[axis]: getattr(plan, axis) for axis in ("tp", "cp", "pp", "ep")}
    if plan.ep > 1:
        found["expert_tensor_parallel_degree"] = plan.expert_tp
    if plan.cp > 1:
        export.one_of(
            "context", CONTEXTS, "it moves or gathers keys and values of tokens dealt out in a zigzag"
        )
        in_two_levels = f"ulysses = {plan.ulysses}"
        export.need(plan.ulysses == 1, in_two_levels, "no option has neighbours in a ring exchange heads")
        found["context_parallel_rotate_method"] = CONTEXTS.get(plan.context)
    return {**found, "enable_async_tensor_parallel": True} if "tp" in plan.overlap else found


def _happening(plan: Plan) -> tuple[str, ...]:
    """What there is to overlap (as in `canonical`)."""
    return ("reduce", "gather") if plan.dp * plan.cp > 1 or plan.ep > 1 else ()


def _check_expert_mesh(export: Export) -> None:
    """Experts take whole axes from the inside out: tp and cp, or cp where they are split over tp themselves."""
    plan = export.plan
    if plan.model.num_experts:
        either = (plan.tp, 1) if plan.ep > 1 else (plan.tp,)
        export.need(
            plan.expert_tp in either,
            f"etp = {plan.expert_tp}",
            f"an expert is divided over {' or '.join(map(str, either))}",
        )
    if plan.ep == 1:
        return
    shards = plan.sharing_degree if plan.sharding != "none" else plan.cp
    inner = plan.cp if plan.expert_tp == plan.tp else plan.cp * plan.tp
    outer = shards if plan.expert_tp == plan.tp else shards * plan.tp
    export.need(
        plan.ep % inner == 0 and outer % plan.ep == 0,
        f"ep = {plan.ep}",
        f"it takes a multiple of {inner} that divides the {outer} devices of a shard",
    )


def _training(export: Export) -> dict[str, Any]:
    plan = export.plan
    whole = plan.master_dtype or plan.dtype
    for name, value in (("dtype", plan.dtype), ("master_dtype", whole)):
        export.need(value in DTYPES, f'{name} = "{value}"', f"it has {' and '.join(DTYPES)}")
    export.one_of("reduction_dtype", ("float32",), "gradients are reduced in float32")
    export.one_of("dispatch", (Plan.dispatch,), "what is written sends tokens once for each of their experts")
    if plan.sharding == "none":
        export.need(
            whole == "float32", f'master_dtype = "{whole}"', "without FSDP it trains float32 parameters"
        )
        export.need(
            plan.dtype == whole or plan.tp == plan.pp == 1,
            f'dtype = "{plan.dtype}"',
            "mixed precision needs FSDP where there is tensor or pipeline parallelism",
        )
    elif plan.sharding == "zero2":
        export.need(plan.master_dtype != "", 'master_dtype = ""', "FSDP keeps a sharded copy of its own")
    # A rank's local batch goes through the pipeline once; without a pipeline it is one microbatch.
    local = plan.microbatch_size * (plan.num_microbatches if plan.pp > 1 else 1)
    found = {
        "seq_len": plan.workload.sequence_length,
        "local_batch_size": local,
        "global_batch_size": plan.workload.global_batch,
        "dtype": whole,
        "mixed_precision_param": plan.dtype,
        "mixed_precision_reduce": plan.reduction_dtype,
    }
    steps = plan.workload.num_steps
    return found if steps is None else {**found, "steps": steps}


def _recompute(export: Export) -> dict[str, Any]:
    recompute = export.plan.recompute
    export.one_of("attention", ("flash",), "its models call fused attention")
    export.one_of("recompute", ("none", "selective_op", "full"), "it does not recompute attention alone")
    export.check_all_blocks()
    if recompute == "selective_op":
        return {"mode": "selective", "selective_ac_option": "op"}
    return {"mode": recompute}


def _compile(export: Export) -> dict[str, Any]:
    plan = export.plan
    export.one_of("software", ("compiled", "eager"), "it runs eagerly or compiled")
    is_compiled = plan.software == "compiled"
    export.need(
        is_compiled or "tp" not in plan.overlap,
        "overlap of tp",
        "asynchronous tensor parallelism is compiled",
    )
    return {"enable": is_compiled, "components": ["model", "loss"]}


def _add_float8(export: Export, tables: Tables) -> None:
    recipe = export.plan.float8
    export.one_of("float8", ("", "tensorwise", "rowwise", "mxfp8"), "it has no such recipe")
    if not recipe:
        return
    name = "quantize.linear.mx" if recipe == "mxfp8" else "quantize.linear.float8"
    tables["model"]["converters"] = [name]
    tables[name] = {"recipe_name": MX_RECIPE if recipe == "mxfp8" else recipe, "filter_fqns": [HEAD]}


def _toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    parts = [
        f"[{name}]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    ]
    return "\n".join(parts)


def _stage_keys(export: Export) -> dict[str, Any]:
    """The keys; nothing without a pipeline, where microbatches run one after the other."""
    plan = export.plan
    if plan.pp == 1:
        export.need(
            (plan.schedule, plan.num_chunks) == ("1f1b", 1),
            f'schedule = "{plan.schedule}", {plan.num_chunks} chunks',
            "there is no schedule without a pipeline: microbatches run one after the other",
        )
        return {}
    if not _has_schedule(export):
        return {}
    dealt = next(_deals(plan), None)
    if dealt is None:
        shown = ", ".join(map(str, plan.layers_per_stage))
        reason = "it deals blocks out evenly, the remainder to the first stages, with fewer on the first and the last"
        export.refuse(f"layers_per_stage = {shown}", reason)
        return {}
    first, last, each = dealt
    found = {
        "pipeline_parallel_schedule": NAMES[plan.schedule],
        "pipeline_parallel_microbatch_size": plan.microbatch_size,
        "pipeline_parallel_first_stage_less_layers": first,
        "pipeline_parallel_last_stage_less_layers": last,
    }
    return {**found, "pipeline_parallel_layers_per_stage": each} if each else found


def _has_schedule(export: Export) -> bool:
    """Whether torchtitan runs this schedule with these chunks and microbatches."""
    plan = export.plan
    num_refused = len(export.refusals)
    export.one_of("schedule", NAMES, f"it has {', '.join(NAMES)}")
    is_interleaved = plan.schedule == INTERLEAVED
    export.need(
        is_interleaved == (plan.num_chunks > 1),
        f"num_chunks = {plan.num_chunks}",
        "only an interleaved schedule has several chunks a rank",
    )
    rounds = max(1, plan.num_microbatches // plan.pp)
    export.need(
        not is_interleaved or plan.num_microbatches % rounds == 0,
        f"{plan.num_microbatches} microbatches",
        f"its interleaved schedule runs them in {rounds} equal rounds",
    )
    return len(export.refusals) == num_refused


def _deals(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Ways to say the plan's stages: how many blocks first and last stage have less, and layers of a stage (0: unsaid)."""
    counts, most = plan.layers_per_stage, max(plan.layers_per_stage)
    for total in range(2 * most + 1):
        each = _layers_per_stage(plan, total)
        share, rest = divmod(plan.model.num_layers + total, len(counts))
        for first in range(total + 1):
            last = total - first
            dealt = [share + (stage < rest) for stage in range(len(counts))]
            dealt[0] -= first
            dealt[-1] -= last
            if each is not None and max(first, last) <= share and tuple(dealt) == counts:
                yield first, last, each


def _layers_per_stage(plan: Plan, less: int) -> int | None:
    """Layers of a stage that make this many stages; 0 where they need not be said, None where there are none."""
    if plan.num_chunks == 1 or plan.num_chunks == INTERLEAVED_CHUNKS:
        return 0
    weight = plan.model.num_layers + less
    return next((each for each in range(1, weight + 1) if -(-weight // each) == plan.num_stages), None)
