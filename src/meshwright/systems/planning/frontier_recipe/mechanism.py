"""The Frontier recipe as a planner, and its jobs: every layout of TP, PP and microbatch, those that do not fit counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product, starmap
from typing import Any

from meshwright.planner.search.proposal import Proposal
from meshwright.planner.space.check import check_open
from meshwright.prediction.memory_limit import checked_memory
from meshwright.prediction.predicted import predict
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import Link
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import OutOfMemoryError, PlanError, UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.systems.megatron_table import SEQUENCE_LENGTH, VOCABULARY_SIZE, iteration_flops

GCDS_PER_NODE = 8
PACKAGE_BYTES_PER_S = 200e9  # four links of 50 GB/s join the two GCDs of a package (OLCF Frontier user guide)
# Of a GCD to other packages, in a group: two rings on one link of 50 GB/s each, one ring for each GCD of a package.
RINGS_BYTES_PER_S = 2 * 50e9
STATE_BYTES = 14  # of a parameter, as the paper counts
PEAK_TERAFLOPS = 191.5  # of a GCD in bfloat16: half of the data sheet's 383
FITTED_ON, FITTED_SHARE = "22B", 0.3838  # the row of the constant, and its share of the peak in the abstract
SCHEDULE = "1f1b"
TENSOR_DEGREES, PIPELINE_DEGREES, MICROBATCH_SIZES = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32), (1, 2, 4)
BILLION, TERA = 1e9, 1e12


@dataclass(frozen=True)
class RecipeLayout:
    """What the search decides: the paper's TP, PP and microbatch size (MBS)."""

    tp: int
    pp: int
    microbatch_size: int = 1


@dataclass(frozen=True)
class RecipeRow:
    """A model and its tuned job on `num_gcds`; a `layout` of None is not known and searched for."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_gcds: int
    global_batch: int
    layout: RecipeLayout | None = None


ROWS = {
    "22B": RecipeRow(48, 6144, 48, 16, 640),
    "175B": RecipeRow(96, 12288, 96, 128, 640, RecipeLayout(4, 16)),
    "1T": RecipeRow(128, 25600, 128, 1024, 1600, RecipeLayout(8, 64)),
}


@dataclass(frozen=True)
class LayoutTrial:
    """A layout that was tried. `roofline_teraflops` of a GCD, before the constant; None: a failure, with its reason."""

    layout: RecipeLayout
    roofline_teraflops: float | None
    failure: str = ""


def row(size: str) -> RecipeRow:
    """A row by its name: 22B, 175B or 1T. Raises UnknownNameError."""
    if size not in ROWS:
        raise UnknownNameError("model of the Frontier recipe", size, ROWS)
    return ROWS[size]


def model(size: str) -> ModelSpec:
    """The GPT model of a row. Raises UnknownNameError."""
    this = row(size)
    return ModelSpec.gpt(
        this.num_layers, this.hidden_size, this.num_heads, vocabulary_size=VOCABULARY_SIZE,
        max_sequence_length=SEQUENCE_LENGTH, name=f"gpt-{size}", source=f"arXiv 2312.12705, {size}",
    )  # fmt: skip


@cache
def frontier(num_gcds: int) -> ClusterSpec:
    """Whole nodes of eight GCDs, with what rings take between packages and inside them. Raises SpecError."""
    cluster = Cluster(f"{num_gcds}xMI250X")
    node, *outer = cluster.levels
    latency_s = node.latency_s
    links = tuple(
        Link(f"device {gcd}", f"device {gcd ^ 1}", PACKAGE_BYTES_PER_S, latency_s) for gcd in range(num_gcds)
    )
    rings = replace(node, bandwidth_bytes_per_s=RINGS_BYTES_PER_S)
    return replace(cluster, levels=(rings, *outer), links=links)


def plan(
    size: str, layout: RecipeLayout, *, sharding: str = "zero1", num_gcds: int = 0
) -> tuple[Plan, ClusterSpec]:
    """A layout of a row's model as a plan, and its part of Frontier.

    Args:
        num_gcds: another number than the row's; the batch grows with it.

    Raises:
        UnknownNameError: there is no such row.
        PlanError: the layout does not divide the GCDs or the batch.
    """
    this = row(size)
    cluster = frontier(num_gcds or this.num_gcds)
    made = Plan.of(
        model(size),
        cluster,
        Workload(this.global_batch * cluster.num_devices // this.num_gcds, SEQUENCE_LENGTH),
        schedule=SCHEDULE,
        tp=layout.tp,
        pp=layout.pp,
        microbatch_size=layout.microbatch_size,
        sharding=sharding,
        recompute="full",
        dtype="bfloat16",
        reduction_dtype="float32",
        master_dtype="float32",
        overlap=(),  # DeepSpeed's pipeline reduces gradients after the last backward
        attention="flash",
        software="fused",
    )
    return made, cluster


def whole_layouts(num_gcds: int, global_batch: int) -> Iterator[RecipeLayout]:
    """The space of the search: GCDs divide into replicas, and the batch into whole microbatches of each."""
    for layout in starmap(RecipeLayout, product(TENSOR_DEGREES, PIPELINE_DEGREES, MICROBATCH_SIZES)):
        num_replicas, rest = divmod(num_gcds, layout.tp * layout.pp)
        if rest == 0 and global_batch % (num_replicas * layout.microbatch_size) == 0:
            yield layout


def planned(model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any]) -> Proposal:
    """As a planner: layouts that divide a cluster and fit it, as the recipe runs its own, the fastest by the roofline first;
    the notes say every layout that failed, as the recipe counts them.

    Raises PlanError where TP, PP or the microbatch is fixed: they are decided here; OutOfMemoryError where none fits.
    """
    check_open(fix, ("tp", "pp", "microbatch_size"))
    node, found, failed = cluster.levels[0].num_devices, list[tuple[float, Plan]](), dict[RecipeLayout, str]()
    for layout in whole_layouts(cluster.num_devices, workload.global_batch):
        if layout.tp > node or layout.pp > model.num_layers:
            continue
        sharding = "zero1" if cluster.num_devices > layout.tp * layout.pp else "none"
        usual = {"schedule": SCHEDULE, "sharding": sharding, "recompute": "full", "overlap": ()}
        try:
            made = Plan.of(model, cluster, workload, **{**usual, **fix, **asdict(layout)})
            if reason := failure(made, cluster):
                failed[layout] = reason
            else:
                found.append((roofline_teraflops(made, cluster), made))
        except PlanError:
            continue  # TP does not divide the heads or the words of this model
    if failed and not found:
        least = list(failed.values())[-1]
        raise OutOfMemoryError(
            f"none of the sweep's {len(failed)} layouts fits: {least}", next="take more devices"
        )
    plans = tuple(made for _, made in sorted(found, key=lambda each: -each[0]))
    return Proposal(plans, (f"{len(plans)} layouts of the sweep fit; {_failures(failed)}",))


def _failures(failed: Mapping[RecipeLayout, str]) -> str:
    """How many layouts do not fit, which, and why the last one, which is cut finest."""
    if not failed:
        return "none fails"
    names = ", ".join(f"tp{each.tp} pp{each.pp} micro {each.microbatch_size}" for each in failed)
    return f"{len(failed)} do not fit ({names}); the last one: {list(failed.values())[-1]}"


def failure(made: Plan, cluster: ClusterSpec) -> str:
    """Why a plan does not fit; empty where it does."""
    memory, missing = checked_memory(made, cluster, cluster.memory_bytes)
    return "" if missing is None else missing.reason


def roofline_teraflops(made: Plan, cluster: ClusterSpec) -> float:
    """TF/s of a GCD by the data sheet alone, recompute counted."""
    spec, batch = made.model, made.workload.global_batch
    flops = iteration_flops(spec.num_layers, spec.hidden_size, VOCABULARY_SIZE, SEQUENCE_LENGTH, batch)
    seconds = predict(made, cluster, extrapolate=True).step.value
    return flops / (made.num_devices * seconds) / TERA


@cache
def search(size: str) -> tuple[LayoutTrial, ...]:
    """Every layout of a row's model on its GCDs, failures included. Raises UnknownNameError."""
    this = row(size)
    return tuple(trial(size, layout) for layout in whole_layouts(this.num_gcds, this.global_batch))


def trial(size: str, layout: RecipeLayout) -> LayoutTrial:
    """One layout: its memory first, as it needs no program, then its rate."""
    made, cluster = plan(size, layout)
    reason = failure(made, cluster)
    return LayoutTrial(layout, None if reason else roofline_teraflops(made, cluster), reason)


def fastest(size: str) -> LayoutTrial:
    """The best layout that fits. Raises OutOfMemoryError where none does."""
    fitting = [one for one in search(size) if one.roofline_teraflops is not None]
    if not fitting:
        raise OutOfMemoryError(
            f"no layout of {size} fits on {row(size).num_gcds} GCDs", next="take more GCDs"
        )
    return max(fitting, key=lambda one: one.roofline_teraflops or 0.0)


@cache
def efficiency() -> float:
    """The one fitted constant: the rate of 22B in the paper over that of the roofline."""
    found = fastest(FITTED_ON).roofline_teraflops
    assert found is not None, "the fastest layout has a rate"
    return FITTED_SHARE * PEAK_TERAFLOPS / found


def teraflops(size: str) -> float:
    """Predicted TF/s of a GCD in a row's tuned job. Raises UnknownNameError."""
    layout = row(size).layout or fastest(size).layout
    return efficiency() * roofline_teraflops(*plan(size, layout))


def weak_scaling(size: str, first: int, last: int) -> float:
    """Rate of a GCD with `last` GCDs over that with `first`, the batch of a replica kept."""
    layout = row(size).layout or fastest(size).layout
    few, many = (roofline_teraflops(*plan(size, layout, num_gcds=count)) for count in (first, last))
    return many / few


def strong_scaling(size: str, first: int, last: int, global_batch: int) -> float:
    """Rate of a GCD with `last` GCDs over that with `first`, the batch kept."""
    layout = row(size).layout or fastest(size).layout
    jobs = [plan(size, layout, num_gcds=count) for count in (first, last)]
    workload = Workload(global_batch, SEQUENCE_LENGTH)
    few, many = (roofline_teraflops(made.changed(workload=workload), cluster) for made, cluster in jobs)
    return many / few


def least_memories(size: str) -> float:
    """GCDs whose memories hold the states: a null."""
    return STATE_BYTES * model(size).num_parameters / frontier(GCDS_PER_NODE).memory_bytes


def least_model_parallel(size: str) -> int:
    """Least TP PP of any layout that fits without sharding, with microbatches of one sequence and TP in a node."""
    degrees = [
        tp * pp for tp, pp in product(TENSOR_DEGREES, PIPELINE_DEGREES) if fits_unsharded(size, tp, pp)
    ]
    if not degrees:
        raise OutOfMemoryError(f"no layout of {size} fits unsharded", next="shard the optimizer's states")
    return min(degrees)


def fits_unsharded(size: str, tp: int, pp: int) -> bool:
    """Does every replica hold all states of its part, and TP stays in a node?"""
    if tp > GCDS_PER_NODE or row(size).num_gcds % (tp * pp):
        return False
    return not failure(*plan(size, RecipeLayout(tp, pp), sharding="none"))


def of_fastest(what: str) -> int:
    """A number of the fastest layout of 175B. Raises UnknownNameError."""
    layout = fastest("175B").layout
    numbers = {
        "nodes of a tensor-parallel group": -(-layout.tp // GCDS_PER_NODE),
        "microbatch size": layout.microbatch_size,
        "pipeline degree": layout.pp,
    }
    if what not in numbers:
        raise UnknownNameError("number of a layout", what, numbers)
    return numbers[what]


def billion_parameters(size: str) -> float:
    """Of our model of a row, from its tensors."""
    return model(size).num_parameters / BILLION
