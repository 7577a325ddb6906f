"""The plan of what one rank does with one microbatch of its groups: what may stand beside groups, and what is left."""

from __future__ import annotations

from meshwright.lowering.sharding.canonical import CANONICAL
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import CONNECT_STAGES, Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.context_parallel import TokenLayout
from meshwright.specs.sequence.sequence_group import GroupedBatch

CONTEXT_OF_GROUPS = "ring"  # keys and values travel around each group
LAYOUT_OF_GROUPS: TokenLayout = "zigzag"  # of every sequence, over the ranks of its group
# What is divided further is exchanged for every microbatch, of which ranks have different numbers.
SHARDINGS = ("none", "zero1")
OFFLOAD = "offload_optimizer"


def plan_of_rank(plan: Plan, groups: GroupedBatch) -> Plan:
    """The plan of what each rank does for itself: groups stand in the place of its cp, and all ranks share parameters, and
    what is divided of these, along dp. Its workload is one microbatch a rank, as long as the longest.

    Raises PlanError where the groups are of another number of ranks, or the plan has what they do not go with yet.
    """
    check_groups(plan, groups)
    most = max(each.part.num_tokens for each in groups.microbatches)
    return plan.changed(
        dp=groups.num_ranks, cp=1, device_order=(), mesh_order=Plan.mesh_order, workload=Workload(groups.num_ranks, most),
        microbatch_size=1, schedule="1f1b", placement="", context=CONTEXT_OF_GROUPS, token_layout=LAYOUT_OF_GROUPS,
        ulysses=1,
    )  # fmt: skip


def check_groups(plan: Plan, groups: GroupedBatch) -> None:
    """Raise PlanError where a plan does not go with the groups."""
    if plan.dp * plan.cp != groups.num_ranks:
        raise PlanError(
            f"groups of {groups.num_ranks} ranks, and dp({plan.dp}) x cp({plan.cp}) = {plan.dp * plan.cp}",
            allowed="as many ranks as the plan's dp x cp",
        )
    beside = {
        f"pp = {plan.pp}": plan.num_stages > 1,
        f"ep = {plan.ep}": plan.ep > 1,
        f"context = {plan.context}": plan.context != CONTEXT_OF_GROUPS and groups.most_degree > 1,
        f"token_layout = {plan.token_layout}": plan.token_layout not in ("", LAYOUT_OF_GROUPS),
        f"ulysses = {plan.ulysses}": plan.ulysses > 1,
        f"sharding = {plan.sharding}": plan.sharding not in SHARDINGS,
        f"sharding_degree = {plan.sharding_degree}": plan.sharding_degree not in (0, groups.num_ranks),
        f"token_parts = {plan.token_parts}": plan.has_parts,
        "sequence_parallel": plan.sequence_parallel,
        f"attention = {plan.attention}": plan.attention != "flash",
        f"vocabulary = {plan.vocabulary}": plan.vocabulary != "ends",
        "an encoder": plan.model.num_encoder_layers > 0,
        "frozen parameters": plan.model.is_adapted,
        CANONICAL: plan.options_of(CANONICAL) is not None,
        CONNECT_STAGES: plan.connects_stages,
        OFFLOAD: plan.options_of(OFFLOAD) is not None,
        "a group that offloads, recompute = full": plan.recompute == "full"
        and any(g.offload for g in groups.groups),
    }
    for name in (name for name, is_there in beside.items() if is_there):
        raise PlanError(
            f"groups of ranks for sequences, and {name}",
            allowed="pp 1, context ring with flash attention, tp, recompute, clipping; sharding none or zero1 over all ranks",
            next="leave it out, or train with one context-parallel degree for all sequences (cp)",
        )
