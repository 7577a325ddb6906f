"""layer_splits: how many blocks each stage of a pipeline could have: as even as can be, and as fast as its devices are."""

from __future__ import annotations

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan

# With more stages than this only the balanced split itself is tried, not those beside it.
MAX_NEIGHBOUR_STAGES = 4


def layer_splits(plan: Plan, cluster: ClusterSpec) -> tuple[tuple[int, ...], ...]:
    """Blocks per stage to try: the plan's own, which come first, and where others balance the stages better, these too.

    Those are the split that `balanced` gives and the ones that move a single block between neighbouring stages of it,
    because messages and the bubble move the best one a little away from what computes alone say.
    """
    found = balanced(plan, cluster)
    if plan.num_stages == 1 or found == plan.layers_per_stage:
        return (plan.layers_per_stage,)
    beside = neighbours(found) if plan.num_stages <= MAX_NEIGHBOUR_STAGES else ()
    return tuple(dict.fromkeys((plan.layers_per_stage, found, *beside)))


def balanced(plan: Plan, cluster: ClusterSpec) -> tuple[int, ...]:
    """The split whose slowest stage is fastest by rates and parameters, each stage having a block at least.

    A stage is as fast as the slowest of its replicas; the head counts as many blocks as its parameters make, and the
    embedding, which is looked up, none. Every further block goes where it ends first, to the earlier stage in a tie.
    """
    speeds, stages = stage_speeds(plan, cluster), range(plan.num_stages)
    model = plan.model
    loads = [1.0] * plan.num_stages
    loads[-1] += model.num_head_parameters / model.num_block_parameters(model.num_layers - 1)
    counts = [1] * plan.num_stages
    for _ in range(model.num_layers - plan.num_stages):
        stage = min(stages, key=lambda s: ((loads[s] + 1) / speeds[s], s))
        loads[stage] += 1
        counts[stage] += 1
    return tuple(counts)


def stage_speeds(plan: Plan, cluster: ClusterSpec) -> list[float]:
    """Peak rate of the slowest device of every stage, stage s standing on pipeline rank s modulo pp."""
    widths = (range(plan.dp), range(plan.cp), range(plan.tp))
    ranks = []
    for rank in range(plan.pp):
        places = (
            plan.device_at(pp=rank, dp=d, cp=c, tp=t) for d in widths[0] for c in widths[1] for t in widths[2]
        )
        ranks.append(min(_rate(cluster, device, plan.dtype) for device in places))
    return [ranks[stage % plan.pp] for stage in range(plan.num_stages)]


def neighbours(split: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The splits with one block moved between two neighbouring stages, none of which is left without."""
    found = []
    for giver, taker in [(s, s + d) for s in range(len(split)) for d in (-1, 1) if 0 <= s + d < len(split)]:
        if split[giver] > 1:
            moved = list(split)
            moved[giver] -= 1
            moved[taker] += 1
            found.append(tuple(moved))
    return tuple(found)


def _rate(cluster: ClusterSpec, device: int, dtype: str) -> float:
    """Peak of the plan's format, or of the first that the data sheet has: only the ratio to other devices matters."""
    rates = cluster.device(device).flops_per_s
    return rates.get(dtype, next(iter(rates.values())))
