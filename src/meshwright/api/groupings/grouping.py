"""`simulate_groups`: what steps take whose sequences are in groups of ranks, over batches drawn of their lengths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright import catalog
from meshwright.api.plans.request import PlanRequest
from meshwright.api.subjects.lengths import lengths_of, with_lengths
from meshwright.api.subjects.loading import PathLike, cluster_named
from meshwright.api.subjects.subject import cluster_of
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.length_distribution import LengthDistribution

if TYPE_CHECKING:
    from meshwright.prediction.sequence.grouped_distribution import GroupedDistribution

SLOT = "sequence_groups"
PLAN_BATCHES = 8  # that are drawn for each plan of a search
ModelLike = str | ModelSpec | Mapping[str, Any] | os.PathLike[str]


def plan_groups(
    model: ModelLike,
    cluster: str | ClusterSpec,
    names: str | Sequence[str],
    *,
    num_batches: int | None = None,
    seed: int = 0,
    **request: Any,
) -> list[GroupedDistribution]:
    """Plans whose ranks share whole sequences in groups that change by step, the one with the shortest mean step first.

    Args:
        model, cluster: as of `plan`. names: as of `simulate_groups`.
        request: fields of `PlanRequest`: global_batch (sequences of a step), seq (at which they are cut), lengths, fix,
            max_memory_bytes, profile, extrapolate, dtype.

    Raises PlanError where something of these is missing, OutOfMemoryError where nothing holds the longest sequence.
    """
    from meshwright.api.plans.planning import with_formats
    from meshwright.planner.sequence.grouped_search import grouped_plans

    asked = PlanRequest.of(request)
    if asked.global_batch is None or asked.seq is None or asked.lengths is None:
        raise PlanError(
            "groups of sequences without global_batch, seq or lengths",
            allowed="all three: --global-batch 512 --seq 384k --lengths DATA",
        )
    where, known = cluster_named(cluster), lengths_of(asked.lengths)
    work = with_lengths(Workload(asked.global_batch, asked.seq), known)
    fixed, _ = with_formats(where, asked.decided)
    wanted = [names] if isinstance(names, str) else list(names)
    limits = {"memory_bytes": asked.max_memory_bytes, "profile": _profile(asked.profile)}
    return grouped_plans(
        load_model(model), where, work, {name: catalog.filler(SLOT, name) for name in wanted}, known, fixed,
        num_batches=num_batches or PLAN_BATCHES, seed=seed, extrapolate=asked.extrapolate, **limits,
    )  # fmt: skip


def _profile(given: Profile | Path | None) -> Profile | None:
    return Profile.load(given) if isinstance(given, Path) else given


def simulate_groups(
    plan: Plan | PathLike,
    names: str | Sequence[str],
    *,
    lengths: PathLike | LengthDistribution | None = None,
    cluster: str | ClusterSpec | None = None,
    profile: Profile | None = None,
    extrapolate: bool = False,
    num_batches: int | None = None,
    seed: int = 0,
) -> GroupedDistribution:
    """The mean step of drawn batches under one or several algorithms, beside groups of one degree and a lower bound.

    Args:
        plan: a plan or its file; its dp x cp ranks share whole sequences, `global_batch` of them in a step.
        names: as of `meshwright list sequence_groups`.
        lengths: of the sequences, cut at the plan's sequence length; None: those that the plan's workload has.
        num_batches, seed: how many are drawn (16), and what keys them.
        cluster, profile, extrapolate: as of `subject`.

    Raises PlanError where there are no lengths, or the plan has no groups; UnknownNameError, SpecError.
    """
    from meshwright.prediction.sequence.grouped_distribution import NUM_BATCHES, grouped_distribution

    found = Plan.load(plan) if isinstance(plan, str | os.PathLike) else plan
    wanted = [names] if isinstance(names, str) else list(names)
    groupings = {name: catalog.filler(SLOT, name) for name in wanted}
    if lengths is None and not found.workload.lengths:
        raise PlanError(
            f"groups of sequences by {' and '.join(wanted)}, and nobody says how long these are",
            allowed="lengths of a data set, or a plan that was made for some",
            next="--lengths DATA (lengths=): token shards, or a file with a length a line",
        )
    known = LengthDistribution.of_pairs(found.workload.lengths) if lengths is None else lengths_of(lengths)
    return grouped_distribution(
        found, cluster_of(found, cluster), groupings, known, num_batches=num_batches or NUM_BATCHES, seed=seed,
        profile=profile, extrapolate=extrapolate,
    )  # fmt: skip
