"""`grouped_plans`: degrees, sharding and recompute for steps whose sequences are in groups of ranks that change.

Context parallelism is decided anew for every step, so what is left to search is small: tensor parallelism, how state is
divided, what is recomputed. Every such plan is priced, and its steps are those of drawn batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.prediction.sequence.grouped_distribution import GroupedDistribution, grouped_distribution
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import OutOfMemoryError, PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.length_distribution import LengthDistribution
from meshwright.specs.sequence.sequence_group import SequenceGrouping

SHARDINGS, RECOMPUTES = ("zero1", "zero3"), ("none", "full")  # that are tried where nobody decided
DECIDED = ("dp", "cp", "pp", "microbatch_size", "schedule", "num_chunks")  # which groups leave no choice of


def grouped_plans(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    groupings: Mapping[str, SequenceGrouping],
    lengths: LengthDistribution,
    fix: Mapping[str, Any] | None = None,
    **given: Any,
) -> list[GroupedDistribution]:
    """The plans that hold the longest sequence, the one with the shortest step by any of these algorithms first.

    Args:
        lengths: of whole sequences, `workload.global_batch` of them in a step, cut at its sequence length.
        fix: fields of a plan that are decided.
        given: num_batches, seed, memory_bytes, profile and extrapolate, as of `grouped_distribution`.

    Raises PlanError for what is fixed and leaves no choice, OutOfMemoryError where nothing holds the longest sequence.
    """
    fixed = dict(fix or {})
    for name in DECIDED:
        if name in fixed:
            raise PlanError(
                f"{name}={fixed[name]} of a plan whose sequences are in groups",
                allowed="tp, sharding, recompute, context, formats: groups share sequences among all other devices, pp is 1",
                next=f"leave {name} out",
            )
    found: list[GroupedDistribution] = []
    refused: list[str] = []
    for choices in _candidates(model, cluster, fixed):
        told = ", ".join(f"{name}={choices[name]}" for name in ("tp", "sharding", "recompute"))
        try:
            plan = Plan.of(
                model, cluster, workload, pp=1, cp=1, dp=cluster.num_devices // choices["tp"], microbatch_size=1, **choices
            )  # fmt: skip
            found.append(grouped_distribution(plan, cluster, groupings, lengths, **given))
        except PlanError as error:
            refused.append(f"{told}: {error.given}")
    if not found:
        raise OutOfMemoryError(
            f"no plan has groups for these sequences: {'; '.join(refused[:4])}",
            allowed="one whose ranks together hold the longest sequence beside their parameters",
            next="cut sequences shorter (--seq), or take more devices",
        )
    return sorted(found, key=lambda each: each.best[1].mean_s)


def _candidates(model: ModelSpec, cluster: ClusterSpec, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All that is fixed, with every choice of the rest."""
    node = cluster.levels[0].num_devices if cluster.levels else cluster.num_devices
    heads = model.kinds[0].attention.num_heads
    degrees = [n for n in (1, 2, 4, 8, 16) if n <= node and cluster.num_devices % n == 0 and heads % n == 0]
    open_choices = {"tp": degrees, "sharding": SHARDINGS, "recompute": RECOMPUTES}
    values = [[fixed[name]] if name in fixed else every for name, every in open_choices.items()]
    rest = {name: value for name, value in fixed.items() if name not in open_choices}
    for tp, sharding, recompute in itertools.product(*values):
        yield {**rest, "tp": tp, "sharding": sharding, "recompute": recompute}
