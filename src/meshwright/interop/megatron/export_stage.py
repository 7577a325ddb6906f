"""Megatron-LM's options for a pipeline: chunks of a rank, and blocks of every stage."""

from __future__ import annotations

from itertools import product

from meshwright.interop.exported import Export
from meshwright.specs.plan.plan import Plan

ENDS = ("embedding", "loss")  # what may count as a layer of the first and of the last stage
SCHEDULES = ("1f1b", "interleaved_1f1b")


def stage_options(export: Export) -> list[tuple[str, str]]:
    """The options; none for even stages of one chunk."""
    plan = export.plan
    _check_schedule(export)
    options = _layer_options(plan)
    if options is None:
        shown = ", ".join(map(str, plan.layers_per_stage))
        reason = (
            "stages are even but for the first and the last rank, or but for embedding and loss as layers"
        )
        export.refuse(f"layers_per_stage = {shown}", reason)
    found = [("--num-virtual-stages-per-pipeline-rank", str(plan.num_chunks))] if plan.num_chunks > 1 else []
    return [*found, *(options or [])]


def _check_schedule(export: Export) -> None:
    plan = export.plan
    export.one_of("schedule", SCHEDULES, f"it has {' and '.join(SCHEDULES)}")
    is_interleaved = plan.num_chunks > 1
    export.need(
        plan.schedule not in SCHEDULES or (plan.schedule == SCHEDULES[1]) == is_interleaved,
        f'schedule = "{plan.schedule}" with num_chunks = {plan.num_chunks}',
        "the interleaved schedule is that of several chunks a rank",
    )
    export.need(
        not is_interleaved or plan.pp > 1, f"num_chunks = {plan.num_chunks}", "chunks need a pipeline"
    )
    export.need(
        not is_interleaved or plan.num_microbatches % plan.pp == 0,
        f"{plan.num_microbatches} microbatches",
        f"the interleaved schedule takes them in groups of pp({plan.pp})",
    )


def _layer_options(plan: Plan) -> list[tuple[str, str]] | None:
    """Options that make the plan's stages; None where there are none."""
    counts, pp = plan.layers_per_stage, plan.pp
    for ends in product((0, 1), repeat=2):
        each, rest = divmod(plan.model.num_layers + sum(ends), len(counts))
        dealt = [each] * len(counts)
        dealt[0] -= ends[0]
        dealt[-1] -= ends[1]
        if not rest and tuple(dealt) == counts and (pp > 1 or not any(ends)):
            names = [name for name, is_layer in zip(ENDS, ends, strict=True) if is_layer]
            return [(f"--account-for-{name}-in-pipeline-split", "") for name in names]
    ranks = [count * plan.num_chunks for count in counts[:pp]]
    repeats = counts[:pp] * plan.num_chunks == counts
    if pp == 1 or not repeats or len(set(ranks[1:-1])) > 1 or not (ranks[0] and ranks[-1]):
        return None
    return [
        ("--decoder-first-pipeline-num-layers", str(ranks[0])),
        ("--decoder-last-pipeline-num-layers", str(ranks[-1])),
    ]
