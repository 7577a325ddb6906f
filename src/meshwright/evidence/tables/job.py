"""`job_of`: makes of a row of a training table the plan and the cluster it measured; every default taken is said."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright import catalog
from meshwright.evidence.tables import words
from meshwright.evidence.tables.model import cluster_of, model_of
from meshwright.evidence.tables.published import Published, day_of, published_of, traits_of_row
from meshwright.evidence.tables.table import TrainingRow
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import SpecError
from meshwright.specs.model.layers import split_layers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.stack.traits import Traits


@dataclass(frozen=True)
class TrainingJob:
    """A row as something that can be predicted: its plan and cluster, its software, and what was assumed; `unpriced`: what
    its software does that no price has, in words."""

    row: TrainingRow
    plan: Plan
    cluster: ClusterSpec
    stack: str
    assumptions: tuple[str, ...]
    unpriced: str = ""


@dataclass(frozen=True)
class _Degrees:
    """Degrees of a row's mesh; dp is what is left of the devices."""

    tp: int
    pp: int
    cp: int
    ep: int
    dp: int


def job_of(row: TrainingRow) -> TrainingJob:
    """The plan and the cluster of a row.

    Raises SpecError for rows that no plan describes (adapters only, four-bit formats) or whose numbers do not fit
    each other, PlanError where the plan contradicts itself, UnknownNameError for a device without a preset.
    """
    words.check_trains(row)
    assumptions: list[str] = []
    traits, published = traits_of_row(row), published_of(row)
    degrees = _degrees(row, assumptions)
    model = model_of(row, degrees.tp, assumptions)
    cluster = cluster_of(row, assumptions)
    plan = _plan(row, traits, published, degrees, model, cluster, assumptions)
    plan = _with_recompute(row, published, plan, cluster, assumptions)
    unpriced = _unpriced(plan, cluster, traits)
    assumptions += [unpriced] if unpriced else []
    return TrainingJob(row, plan, cluster, words.stack_of(row, traits), tuple(assumptions), unpriced)


def _unpriced(plan: Plan, cluster: ClusterSpec, traits: Traits) -> str:
    """What no price has: within a node broadcasts take what a gather takes; over many nodes each waits for the one before."""
    sharing = (plan.sharding_degree or plan.dp * plan.cp) if plan.sharding != "none" else 1
    if not traits.broadcasts_states or sharing <= cluster.levels[0].num_devices:
        return ""
    return f"stepped parameters are sent by {sharing} broadcasts, one after another: priced as one gather"


def _plan(
    row: TrainingRow,
    traits: Traits,
    published: Published,
    degrees: _Degrees,
    model: ModelSpec,
    cluster: ClusterSpec,
    assumptions: list[str],
) -> Plan:
    num_chunks = _num_chunks(row, published, degrees.pp, model, assumptions)
    sharding = words.SHARDED[_zero(row, traits, assumptions)]
    dtype = words.dtype_of(row, assumptions)
    copies = degrees.dp * degrees.cp
    attention = words.attention_of(row, model, traits, day_of(row), assumptions)
    return Plan(
        model=model,
        cluster=cluster.name,
        num_devices=cluster.num_devices,
        workload=Workload(row.count("global_batch_seqs"), row.sequence_length),
        layers_per_stage=_layers(row, traits, model, degrees.pp * num_chunks, assumptions),
        schedule=words.schedule_of(row, num_chunks),
        pp=degrees.pp,
        dp=degrees.dp,
        tp=degrees.tp,
        cp=degrees.cp,
        ep=degrees.ep,
        etp=_expert_tp(degrees, traits),
        num_chunks=num_chunks,
        microbatch_size=_microbatch_size(row, published, degrees.dp, model, assumptions),
        recompute=words.recompute_of(row, assumptions) or "none",
        sharding=sharding,
        dtype=dtype,
        sequence_parallel=row.count("sp") > 0 and degrees.tp > 1,
        sharding_degree=words.sharding_degree_of(row, copies, assumptions) if sharding != "none" else 0,
        float8=words.float8_of(row, assumptions),
        reduction_dtype=words.reduction_dtype_of(row, traits),
        master_dtype="float32",
        overlap=words.overlap_of(row, traits, degrees.tp, degrees.pp, sharding, assumptions),
        vocabulary=words.vocabulary_of(row),
        attention=attention,
        dispatch=words.dispatch_of(row, traits),
        software=words.software_of(row, traits),
    )


def _degrees(row: TrainingRow, assumptions: list[str]) -> _Degrees:
    """Degrees as given, 1 where empty; dp by division, whatever its column says."""
    tp, pp, cp, ep = (max(1, row.count(name, 1)) for name in ("tp", "pp", "cp", "ep"))
    gpus = row.count("gpus")
    if gpus % (tp * pp * cp):
        raise SpecError(
            f"{row.where}: {gpus} devices do not divide into tp({tp}) x pp({pp}) x cp({cp})",
            allowed=f"a multiple of {tp * pp * cp} devices",
        )
    dp = gpus // (tp * pp * cp)
    if row.text("dp") and row.count("dp") != dp:
        assumptions.append(f"dp is {row.text('dp')} in the table: {dp} = gpus / (tp x pp x cp) is used")
    return _Degrees(tp, pp, cp, ep if row.is_moe else 1, dp)


def _expert_tp(degrees: _Degrees, traits: Traits) -> int:
    """1 where experts stay whole on devices that take in those of tp; else as plans have it."""
    return int(traits.has_whole_experts and degrees.tp > 1 and degrees.ep > 1)


def _num_chunks(
    row: TrainingRow, published: Published, pp: int, model: ModelSpec, assumptions: list[str]
) -> int:
    """Chunks a device: as given, else by the rule of who published it; a pipeline of one stage has one."""
    if pp == 1:
        return 1
    if row.text("vpp"):
        return max(1, row.count("vpp"))
    rule = published.num_chunks
    chunks = 1 if rule is None else rule(float(model.num_parameters), model.num_layers / pp)
    assumptions.append(f"vpp is empty: {chunks} chunks a device ({published.reference})")
    return chunks


def _layers(
    row: TrainingRow, traits: Traits, model: ModelSpec, num_stages: int, assumptions: list[str]
) -> tuple[int, ...]:
    """Blocks a stage: as the software balances them; even where they divide, else with embedding and head as layers, else the
    first ones get more."""
    num_layers = model.num_layers
    if traits.balances == "by cost" and num_stages > 1:
        block = (model.num_matmul_parameters - model.num_head_parameters) / num_layers
        assumptions.append(f"stages are balanced by the cost of their products ({traits.reference})")
        return words.by_cumulative_cost(num_layers, num_stages, model.num_head_parameters / block)
    if words.method_of(row) == "redis":
        return _redistributed(row, model, num_stages, assumptions)
    if num_layers % num_stages:
        counted = words.with_vocabulary_as_layers(num_layers, num_stages)
        if counted is not None:
            assumptions.append(
                f"{num_layers} layers on {num_stages} stages: embedding and head count as layers"
            )
            return counted
        assumptions.append(f"{num_layers} layers on {num_stages} stages: the first ones have one more")
    return split_layers(num_layers, num_stages)


def _redistributed(
    row: TrainingRow, model: ModelSpec, num_stages: int, assumptions: list[str]
) -> tuple[int, ...]:
    """Blocks moved from the last stage so that its head does not slow the pipeline; costs by FLOPs of the forward."""
    head_flops = 2.0 * model.num_head_parameters
    matmul = model.num_matmul_parameters - model.num_head_parameters
    scores = (
        2.0 * (model.attention.query_size + model.attention.result_size) * row.sequence_length
    )  # all keys, as its authors count
    block_flops = 2.0 * matmul / model.num_layers + scores
    counts = words.redistributed(model.num_layers, num_stages, head_flops / block_flops)
    assumptions.append("layers are redistributed by FLOPs so that the last stage's head costs as some blocks")
    return counts


def _microbatch_size(
    row: TrainingRow, published: Published, dp: int, model: ModelSpec, assumptions: list[str]
) -> int:
    """Sequences of a microbatch: as given, else from their number, else by who published it; the nearest that divides."""
    batch = row.count("global_batch_seqs")
    if batch % dp:
        raise SpecError(
            f"{row.where}: {batch} sequences do not divide over dp({dp})",
            allowed=f"a global batch that is a multiple of {dp}",
        )
    share = batch // dp
    wanted = _wanted_microbatch(row, published, share, model, assumptions)
    sizes = (size for size in range(1, share + 1) if share % size == 0)
    size = min(sizes, key=lambda size: (abs(size - wanted), size))
    if size != wanted:
        assumptions.append(f"microbatches of {wanted} do not divide {share} sequences a replica: {size}")
    return size


def _wanted_microbatch(
    row: TrainingRow, published: Published, share: int, model: ModelSpec, assumptions: list[str]
) -> int:
    given, number = row.count("micro_batch_seqs"), row.count("num_microbatches")
    if given:
        return given
    if number and share % number == 0:
        assumptions.append(f"micro_batch_seqs is empty: {share // number} for {number} microbatches")
        return share // number
    size = 1 if published.microbatch_size is None else published.microbatch_size(float(model.num_parameters))
    assumptions.append(f"micro_batch_seqs is empty: {size} ({published.reference})")
    return size


def _zero(row: TrainingRow, traits: Traits, assumptions: list[str]) -> int:
    if not row.text("zero"):
        assumptions.append(f"zero is empty: {traits.shards} ({traits.reference})")
        return traits.shards
    level = row.count("zero")
    if level >= len(words.SHARDED):
        raise SpecError(f"{row.where}: zero is {level}", allowed="0 to 3")
    return level


def _with_recompute(
    row: TrainingRow, published: Published, plan: Plan, cluster: ClusterSpec, assumptions: list[str]
) -> Plan:
    """Where the row does not say what is recomputed: nothing if that fits the memory, else attention's core, else all.

    Who published it may be known to recompute less than all. What must fit are tensors and the driver's context: the run did
    fit, and whoever tuned it for a published figure kept the allocator from losing memory to fragments.
    """
    said = row.text("recompute")
    if words.recompute_of(row) is not None:
        if " or " in said:
            assumptions.append(f"recompute is {said!r}: {plan.recompute}")
        return plan
    given = f"recompute is {said!r}" if said else "recompute is empty"
    schedule, tried = catalog.find_schedule(plan.schedule), plan
    for kind in published.recomputes:
        tried = replace(plan, recompute=kind)
        memory = estimate_memory(tried, cluster, schedule)
        needed = max(device.allocated_bytes + device.context_bytes for device in memory.devices)
        if needed <= cluster.memory_bytes:
            assumptions.append(f"{given}: {kind}, the first of {', '.join(published.recomputes)} that fits")
            return tried
    assumptions.append(f"{given}: {tried.recompute}, though by the estimate none of the choices fits")
    return tried
