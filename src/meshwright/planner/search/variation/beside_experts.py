"""Plans whose all-to-alls of tokens pass beside another microbatch's experts, for software that can: our own executor cannot,
so they are tried where the plan is for another program.

As Megatron-LM's combined 1F1B has it: the forward of one microbatch beside the backward of another, so with two of them at
least, nothing run again as a whole, and in a pipeline with several chunks a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.planner.search.search import NUM_LAYER_WISE as NUM_VARIED
from meshwright.prediction.predicted import Predicted
from meshwright.specs.plan.plan import Plan

BESIDE = "ep"  # of `Plan.overlap`
IN_CHUNKS = "interleaved_1f1b"


def beside_experts(ranked: Sequence[Predicted]) -> Iterator[Plan]:
    """Of the best few plans that may have it, the same with it."""
    open_plans = (each.plan for each in ranked if _may_have(each.plan))
    for _, plan in zip(range(NUM_VARIED), open_plans, strict=False):
        yield plan.changed(overlap=(*plan.overlap, BESIDE))


def _may_have(plan: Plan) -> bool:
    is_in_chunks = plan.pp == 1 or plan.schedule == IN_CHUNKS
    is_open = plan.ep > 1 and BESIDE not in plan.overlap and not plan.has_parts
    return is_open and is_in_chunks and plan.num_microbatches > 1 and plan.recompute != "full"
