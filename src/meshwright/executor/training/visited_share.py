"""Which share of an iteration visits each parameter group, where microbatches leave stages out."""

from __future__ import annotations

from meshwright.ir.judge.verify import WEIGHT_TOLERANCE
from meshwright.ir.program import Program
from meshwright.specs.error import ExecutionError


def visited_shares(program: Program) -> tuple[float, ...]:
    """For every group of the table the weights of the microbatches that pass its stages, summed; 1 where all do.

    A gradient divided by it is the mean over the microbatches that made it: then the weights of its contributions sum to
    one, as they must.

    Raises:
        ExecutionError: two stages use one group and are visited by different shares; no one number is right for their sum.
    """
    tables = program.tables
    by_stage = [0.0] * tables.num_stages
    for microbatch in tables.microbatches:
        for stage in {hop.stage for hop in tables.paths[microbatch.path]}:
            by_stage[stage] += microbatch.weight
    whole = [1.0 if abs(share - 1.0) <= WEIGHT_TOLERANCE else share for share in by_stage]
    found = []
    for group in tables.groups:
        shares = {whole[stage] for stage in group.stages}
        if len(shares) > 1:
            raise ExecutionError(
                f"stages {group.stages} share {group.name}, and {sorted(shares)} of the iteration visit them",
                next="let all microbatches pass both, or give each stage parameters of its own",
            )
        found.append(shares.pop() if shares else 1.0)
    return tuple(found)
