"""Rows that share devices: a 70B-like pipeline cut into segments, exchanges of one token part beside another's computes.

80 layers on 8 stages, tensor parallelism collapsed: every layer of every microbatch is two segments (attention, MLP) in two
token parts, each with a gather before and a reduction behind it, forward and backward. What exchanges takes part of the
device that computes. Only the event engine's work is of interest here: nothing trains this.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Microbatch, Pattern, ValueKind, Work
from meshwright.schedules import Compute, registered

LAYERS, STAGES, PARTS = 80, 8, 2
HOPS = 2 * LAYERS // STAGES  # segments of a stage
KINDS = ("residual", "whole", "term")  # between segments; gathered; a term of a sum
ACROSS = Exchange(("tp",), algorithm="all_gather")


def exchange_cost(exchange: Exchange) -> Cost:
    """A message to the next stage needs little of the device, a gather or a reduction a fifth of it and its memory."""
    if exchange == ACROSS:
        return Cost(0.4, 0.01, compute_share=0.2, memory_share=0.5)
    return Cost(0.2, 0.02, compute_share=0.05)


COSTS = FixedCosts({"F": 1.0, "B": 2.0}, exchange=exchange_cost)


def contended(num_microbatches: int) -> Program:
    """The program, by 1F1B."""
    kinds = tuple(ValueKind(f"{name}_{direction}") for direction in "FB" for name in KINDS)
    builder = ProgramBuilder(
        [Axis("pp", STAGES), Axis("tp", 8, materialised=False)],
        value_kinds=kinds,
        microbatches=tuple(Microbatch(1, 1 / num_microbatches) for _ in range(num_microbatches)),
    )
    for device, order in enumerate(registered()["1f1b"].orders(STAGES, num_microbatches)):
        for compute in order:
            for hop, part, row in rows_of(compute):
                builder.add(device, hop=hop, microbatch=compute.microbatch, part=part, **row)
    return builder.build()


def rows_of(compute: Compute) -> Iterator[tuple[int, int, dict[str, object]]]:
    """(hop, part, row) of a stage's pass over a microbatch: received, its segments, sent on."""
    step = 1 if compute.name == "F" else -1
    first = compute.stage * HOPS + (0 if step > 0 else HOPS)
    last, parts = first + step * HOPS, range(PARTS)
    residual = Pattern(f"residual_{compute.name}", part="row")
    has_next = 0 <= compute.stage + step < STAGES
    if 0 <= compute.stage - step < STAGES:
        for part in parts:
            yield first, part, moved(compute, Kind.RECEIVE, compute.stage - step, compute.stage, residual)
    else:
        for part in parts:
            yield first, part, {"effect": Effect(Kind.COMPUTE, "BEGIN", (), (residual,))}
    for hop in range(first, last, step):
        gather, *others = segment(compute.name, step)
        for part in (
            parts
        ):  # the second gather stands beside the first part's compute, also for a host that walks in order
            yield hop, part, gather
        for part in parts:
            for row in others:
                yield hop, part, row
    for part in parts if has_next else ():
        yield last, part, moved(compute, Kind.SEND, compute.stage, compute.stage + step, residual)


def moved(compute: Compute, kind: Kind, source: int, target: int, value: Pattern) -> dict[str, object]:
    """One end of a message between stages."""
    name = f"{'SEND' if kind == Kind.SEND else 'RECV'}_{compute.name}"
    peer = target if kind == Kind.SEND else source
    touched = ((value,), ()) if kind == Kind.SEND else ((), (value,))
    return {
        "effect": Effect(kind, name, *touched),
        "exchange": Exchange(("pp",), (source, target)),
        "stream": f"{'send' if kind == Kind.SEND else 'receive'}/pp{peer}",
    }


def segment(name: str, step: int) -> Iterator[dict[str, object]]:
    """A gather, a compute, and the reduction that makes the next segment's input."""
    residual, whole, term = (Pattern(f"{kind}_{name}", part="row") for kind in KINDS)
    gather = Effect(Kind.COLLECTIVE, f"GATHER_{name}", (residual,), (whole,))
    reduce = Effect(Kind.COLLECTIVE, f"REDUCE_{name}", (term,), (residual._replace(offset=step),))
    yield {"effect": gather, "exchange": ACROSS, "stream": "gather"}
    yield {"effect": Effect(Kind.COMPUTE, name, (whole,), (term,)), "work": Work(name)}
    yield {"effect": reduce, "exchange": ACROSS, "stream": "reduce"}
