"""Enumerates every plan that a number of devices allows and ranks those that fit by predicted tokens per second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.costs.cost import CommunicationModel, CostModel
from meshwright.planner.search.ranked import Ranked
from meshwright.planner.space.layer_split import layer_splits
from meshwright.prediction.description import describe
from meshwright.prediction.memory_limit import Rejection, out_of_memory
from meshwright.prediction.predicted_plan import Candidate, evaluate
from meshwright.prediction.step_prediction import ITERATIONS
from meshwright.schedules.order import Schedule
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan, Recompute
from meshwright.specs.plan.workload import Workload

# Sequences; larger ones only lengthen the bubble of the pipelines considered here.
MICROBATCH_SIZES = (1, 2, 4, 8)
TRIED_RECOMPUTES: tuple[Recompute, ...] = ("none", "full")  # what the executor runs
ONE_STAGE_ORDER = "1f1b"  # without stages to fill all orders take as long, and this one keeps the least
Progress = Callable[[str, float], None]


NUM_SHOWN = 10  # candidates that a ranking prints


@dataclass(frozen=True, eq=False)
class Ranking(Ranked[Candidate]):
    """Candidates, the fastest first (equally fast ones: the smaller peak first), and the plans that do not fit."""

    plans: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...] = ()
    assumptions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [f"{place:>3}  {candidate}" for place, candidate in enumerate(self.plans[:NUM_SHOWN], 1)]
        if len(self) > NUM_SHOWN:
            lines.append(f"     and {len(self) - NUM_SHOWN} more")
        if self.rejected:
            lines.append(f"     {len(self.rejected)} plans do not fit")
        lines += [f"     assumed: {line}" for line in self.assumptions]
        return "\n".join(lines)


def plans_for(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    computes: CostModel | None,
    messages: CommunicationModel | None,
    schedules: Mapping[str, Schedule],
    *,
    fix: Mapping[str, Any] | None = None,
    microbatch_sizes: Sequence[int] = MICROBATCH_SIZES,
    dtype: str = "float32",
    iterations: int = ITERATIONS,
    progress: Progress | None = None,
    extrapolate: bool = False,
    assumptions: Sequence[str] = (),
) -> Ranking:
    """All plans that the cluster's devices allow, simulated and ranked. Deterministic.

    Args:
        computes, messages: what works and exchanges cost; None: on GPUs, as `predict_step` prices them.
        schedules: the orders to try, by name.
        fix: fields of `Plan` that are decided already, such as {"pp": 2}.
        microbatch_sizes: sequences of a microbatch to try, where they divide a pipeline's batch.
        progress: called with a plan in words and the share that is done, 0 to 1.
        extrapolate: without cost models, accept devices on whose relatives no step was measured.
        assumptions: what was chosen for the user; the ranking hands it on.

    Raises:
        PlanError: no plan exists for these devices, this batch and what is fixed; or nobody measured such devices.
        OutOfMemoryError: no plan fits; names the nearest misses and who holds the most.
    """
    fixed = dict(fix or {})
    plans = list(choices(model, cluster, workload, schedules, fixed, microbatch_sizes, dtype))
    if not plans:
        raise PlanError(
            f"no plan puts a batch of {workload.global_batch} and {model.num_layers} layers on "
            f"{cluster.num_devices} devices with {fixed or 'nothing'} fixed",
            allowed="a batch that the data-parallel degree divides, at most as many stages as layers",
            next="change the batch or the number of devices, or fix less",
        )
    candidates, rejected, seen = [], [], set()
    for number, plan in enumerate(plans):
        if progress is not None:
            progress(describe(plan), number / len(plans))
        result = evaluate(
            plan, cluster, computes, messages, schedules[plan.schedule], iterations=iterations,
            extrapolate=extrapolate,
        )  # fmt: skip
        if isinstance(result, Rejection):
            rejected.append(result)
        elif (digest := result.program.digest()) not in seen:
            seen.add(digest)  # with one microbatch, or one stage, several schedules are the same program
            candidates.append(result)
    if not candidates:
        raise out_of_memory(rejected)
    order = sorted(candidates, key=lambda c: (_rounded(c.step.value), c.peak_bytes, c.description))
    return Ranking(tuple(order), tuple(rejected), tuple(assumptions))


def _rounded(seconds: float) -> float:
    """Seconds to nine digits: what differs only by the rounding of sums is equally fast."""
    return float(f"{seconds:.9g}")


def choices(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    schedules: Mapping[str, Schedule],
    fix: Mapping[str, Any],
    microbatch_sizes: Sequence[int] = MICROBATCH_SIZES,
    dtype: str = "float32",
) -> Iterator[Plan]:
    """Every plan of the space, in a fixed order; nothing is lowered yet. Raises PlanError on an unknown field.

    Stages are even, and uneven where devices or the model's ends are (`layer_splits`).
    """
    wanted = {**fix}
    wanted.setdefault("dtype", dtype)
    sizes = (wanted["microbatch_size"],) if "microbatch_size" in wanted else microbatch_sizes
    for name, value in [
        *(("microbatch_size", size) for size in sizes),
        ("num_chunks", wanted.get("num_chunks", 1)),
    ]:
        if not isinstance(value, int) or value < 1:
            raise PlanError(f"{name} is {value!r}", allowed="a whole number from 1")
    for pp, dp in _degrees(cluster.num_devices // _taken(wanted)):
        for name in _orders(schedules, pp):
            if model.is_adapted and schedules[name].num_copies > 1 and wanted.get("schedule") != name:
                continue  # copies of a frozen stage: `lower` refuses them
            for options in _options(schedules[name], pp, workload.global_batch, dp, sizes):
                choice = {"schedule": name, "pp": pp, "dp": dp, **options}
                if choice["num_chunks"] > 1:  # how many there are is a choice where there are any
                    choice["num_chunks"] = wanted.get("num_chunks", choice["num_chunks"])
                # what is fixed and has no alternatives here (dtype, tp, ...) is simply handed on
                if any(choice[key] != wanted[key] for key in choice.keys() & wanted.keys()):
                    continue
                if pp * choice["num_chunks"] <= model.num_layers:
                    plan = Plan.of(model, cluster, workload, **{**choice, **wanted})
                    is_open = "layers_per_stage" not in wanted
                    splits = layer_splits(plan, cluster) if is_open else (plan.layers_per_stage,)
                    yield from (plan.changed(layers_per_stage=split) for split in splits)


def _taken(fix: Mapping[str, Any]) -> int:
    """Devices that fixed degrees of other axes take."""
    return max(1, int(fix.get("tp", 1)) * int(fix.get("cp", 1)))


def _degrees(num_devices: int) -> list[tuple[int, int]]:
    """(pp, dp) with pp x dp devices, pipelines from short to long."""
    return [(pp, num_devices // pp) for pp in range(1, num_devices + 1) if num_devices % pp == 0]


def _orders(schedules: Mapping[str, Schedule], pp: int) -> list[str]:
    """Schedules worth trying on `pp` devices: on one device, one."""
    if pp > 1:
        return [name for name, one in schedules.items() if one.takes_devices(pp)]
    plain = [name for name, s in schedules.items() if s.num_chunks == 1 and not s.splits_backward]
    return [ONE_STAGE_ORDER] if ONE_STAGE_ORDER in plain else plain[:1]


def _options(
    schedule: Schedule, pp: int, global_batch: int, dp: int, sizes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Everything else that can be chosen: microbatch, recompute, split backward (it helps only where somebody waits)."""
    splits = (False,) if pp == 1 or schedule.splits_backward else (False, True)
    for size in sizes:
        if global_batch % (dp * size):
            continue
        for recompute in TRIED_RECOMPUTES:
            for split in splits:
                yield {
                    "microbatch_size": size,
                    "recompute": recompute,
                    "split_backward": split,
                    "num_chunks": schedule.num_chunks,
                }
