"""`grouped_program`: one training step whose sequences are in groups of ranks of different sizes, as a program.

The program has a list for every rank (axis ``dp``) and a microbatch for what each rank has of each of its groups:
microbatch number n of the program is ``groups.microbatches[n]``, which says the rank, the numbers of the sequences in
``groups.lengths``, and `part`, the places of its tokens among those of the sequences packed one behind the other. So a
rank looks up the data of microbatch n: it asks for each of ``microbatches[n].sequences`` by its number, puts padding
behind each up to ``part.firsts``, and takes ``part.runs`` of that.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.program import Program
from meshwright.lowering.lower import lowered
from meshwright.lowering.pipeline import Lowering
from meshwright.lowering.sequence.group_plan import plan_of_rank
from meshwright.schedules.order import registered
from meshwright.specs.plan.plan import Plan
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.stage.group.parameter_group import held_groups


def grouped_program(plan: Plan, groups: GroupedBatch, *, step: bool = True) -> Program:
    """The program of a step with these groups over the plan's dp x cp ranks; what the plan says of dp, cp, and the batch is
    left to the groups, all else (the model, tp, recompute, formats, clipping, the optimizer) is as it says.

    Args:
        step: with gradient reduction and optimizer step.

    Raises:
        PlanError: the plan has another number of ranks, or what groups do not go with; the message says what is allowed.
    """
    own = plan_of_rank(plan, groups)
    stages = own.stages()
    # that ranks hold copies say the paths
    held = tuple(replace(each, group=each.group._replace(replicated=())) for each in held_groups(own, stages))
    return lowered(Lowering(own, registered()[own.schedule], (1,), stages, held, step, True, groups))
