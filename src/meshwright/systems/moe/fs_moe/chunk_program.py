"""The chunks of an expert layer as a program: a list schedule of their parts on three streams of a device."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Exchange, Hop, Kind, Microbatch, Pattern, ValueKind, Work
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.simulator.simulate import simulate_program
from meshwright.systems.moe.fs_moe.mechanism import ExpertLayer

AXIS, NUM_DEVICES = "ep", 2  # that all do the same: one list
VALUES = tuple(
    ValueKind(f"{name}_chunk", index="none", microbatch=False)
    for name in ("dense", "dispatched", "gathered", "expert", "scattered")
)
RETURNED = ValueKind("returned_chunk", index="none", microbatch=False, carried=True)
REDUCED = ValueKind("reduced_gradients", index="none", microbatch=False, carried=True)
BETWEEN, WITHIN, COMPUTE = "dispatch", "gather", "compute"  # the three streams


def _chunk(kind: ValueKind) -> Pattern:
    """A value of the row's own chunk."""
    return Pattern(kind.name, index="none", part="row")


_MADE = (*VALUES, RETURNED)
MAKE = Effect(Kind.COMPUTE, "MAKE_CHUNK", (), (_chunk(VALUES[0]),))
STEPS = tuple(
    Effect(kind, name, (_chunk(_MADE[place]),), (_chunk(_MADE[place + 1]),))
    for place, (kind, name) in enumerate(
        (
            (Kind.COLLECTIVE, "DISPATCH_CHUNK"),
            (Kind.COLLECTIVE, "GATHER_CHUNK"),
            (Kind.COMPUTE, "EXPERT_CHUNK"),
            (Kind.COLLECTIVE, "SCATTER_CHUNK"),
            (Kind.COLLECTIVE, "COMBINE_CHUNK"),
        )
    )
)
REDUCE = Effect(Kind.COLLECTIVE, "REDUCE_OTHERS", (_chunk(VALUES[0]),), (_chunk(REDUCED),))
STREAMS = (BETWEEN, WITHIN, COMPUTE, WITHIN, BETWEEN)
VOCABULARY = Vocabulary.of(
    *_MADE, REDUCED, Name(MAKE, "path"), *(Name(step, "path") if step.kind is Kind.COMPUTE else Name(step) for step in STEPS),
    Name(REDUCE), owner="fs_moe",
)  # fmt: skip


class ChunkRow(NamedTuple):
    """A part of a chunk: which of the five steps."""

    step: int
    chunk: int


def listed(layer: ExpertLayer, chunks: int) -> tuple[ChunkRow, ...]:
    """All rows in the order in which a list scheduler starts them: whatever can start first does; of several the chunk that
    has come less far, so that experts are fed."""
    chunk = layer.chunk(chunks)
    seconds = (chunk.all_to_all, chunk.all_gather, chunk.expert, chunk.reduce_scatter, chunk.all_to_all)
    ready = {ChunkRow(0, number): 0.0 for number in range(chunks)}
    free, order = dict.fromkeys(STREAMS, 0.0), list[ChunkRow]()
    while ready:
        row = min(ready, key=lambda each: (max(ready[each], free[STREAMS[each.step]]), each))
        stream = STREAMS[row.step]
        free[stream] = end_s = max(ready.pop(row), free[stream]) + seconds[row.step]
        order.append(row)
        if row.step + 1 < len(STEPS):
            ready[row._replace(step=row.step + 1)] = end_s
    return tuple(order)


def chunk_program(layer: ExpertLayer, chunks: int, *, reduces: bool = False) -> Program:
    """The list schedule of one pass; `reduces`: gradients of other parameters between what is sent and what comes back."""
    builder = ProgramBuilder(
        (Axis("pp", 1), Axis(AXIS, NUM_DEVICES, materialised=False)),
        microbatches=(Microbatch(1, 1.0),),
        paths=((Hop(0, 0),),),
        duties=(Duty(MAKE.name, parts=chunks), Duty(STEPS[2].name, parts=chunks)),
        vocabulary=VOCABULARY,
    )
    everybody, left = Exchange((AXIS,), algorithm="all_to_all"), chunks
    for number in range(chunks):
        builder.add(0, MAKE, part=number, work=Work(MAKE.name))
    for row in listed(layer, chunks):
        effect, stream = STEPS[row.step], STREAMS[row.step]
        if effect.kind is Kind.COMPUTE:
            builder.add(0, effect, part=row.chunk, work=Work(effect.name))
            continue
        exchange = everybody._replace(algorithm=effect.name)
        builder.add(0, effect, part=row.chunk, stream=stream, exchange=exchange)
        left -= row.step == 0
        if reduces and not left and row.step == 0:
            builder.add(0, REDUCE, stream=stream, exchange=everybody._replace(algorithm=REDUCE.name))
    return builder.build()


def simulated_seconds(layer: ExpertLayer, chunks: int, gradients_s: float = 0.0) -> float:
    """What the simulator says of the list schedule."""
    chunk = layer.chunk(chunks)
    seconds = {
        STEPS[0].name: chunk.all_to_all, STEPS[1].name: chunk.all_gather, STEPS[3].name: chunk.reduce_scatter,
        STEPS[4].name: chunk.all_to_all, REDUCE.name: gradients_s,
    }  # fmt: skip
    costs = FixedCosts(
        {STEPS[2].name: chunk.expert}, exchange=lambda each: Cost(seconds[each.algorithm], compute_share=0.0)
    )
    program = chunk_program(layer, chunks, reduces=gradients_s > 0)
    return metrics.span_s(simulate_program(program, costs, costs))
