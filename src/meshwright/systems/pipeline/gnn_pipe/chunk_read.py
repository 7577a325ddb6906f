"""Embeddings of other chunks of a graph as values: what forwards and backwards of a chunk read and write of them."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.program import Program
from meshwright.ir.table import Duty, Effect, Pattern, ValueKind
from meshwright.ir.vocabulary import NAMES, register_name, register_value_kind
from meshwright.lowering.order import with_effects
from meshwright.systems.pipeline.gnn_pipe.graph_chunk import Chunks
from meshwright.systems.pipeline.gnn_pipe.graph_network import GraphNetwork

# Inputs of the layers of a stage for the nodes of one chunk (its part). One that feeds the first layer of all is features.
EMBEDDING = register_value_kind(ValueKind("embedding", index="stage", microbatch=False))
EMBEDDING_GRADIENT = register_value_kind(
    ValueKind("embedding_gradient", index="stage", microbatch=False, accumulates=True)
)
# What a device saw in an epoch, for the controller: its loss and the bytes that it received.
OBSERVED = register_value_kind(ValueKind("observed", index="none", microbatch=False, accumulates=True))
_SEEN = Pattern("observed", index="none")
F, B, STEP = (NAMES[name].effect for name in ("F", "B", "STEP"))
GRAPH_F = F._replace(name="GRAPH_F", writes=(*F.writes, _SEEN))
GRAPH_B = B._replace(name="GRAPH_B", writes=(*B.writes, _SEEN))
GRAPH_STEP = STEP._replace(name="GRAPH_STEP")
for _effect, _per in ((GRAPH_F, "path"), (GRAPH_B, "path"), (GRAPH_STEP, "stage")):
    register_name(_effect, per=_per)


@dataclass(frozen=True)
class ReadChunks:
    """Let forwards and backwards of a chunk touch the embeddings of the chunks that it has edges to.

    A forward writes its own, reads those of chunks before it in ``order`` as they are and the others at age 1; a backward
    adds to the gradients of the former, and reads its own.
    """

    network: GraphNetwork
    chunks: Chunks
    order: tuple[int, ...]
    name: str = "read_chunks"

    def __call__(self, program: Program) -> Program:
        """The program of F, B and STEP with GRAPH_F, GRAPH_B and GRAPH_STEP in their places."""
        c, names = program.columns, [effect.name for effect in program.tables.effects]
        chosen: dict[tuple[str, int, int], Effect] = {}
        num_stages = program.tables.num_stages
        for stage in range(num_stages):
            has_embeddings = self.network.num_embeddings(stage, num_stages) > 0
            for chunk in self.order:
                chosen["F", stage, chunk] = self.forward(chunk) if has_embeddings else GRAPH_F
                chosen["B", stage, chunk] = self.backward(chunk) if has_embeddings else GRAPH_B
            chosen["STEP", stage, 0] = GRAPH_STEP
        effects = tuple(dict.fromkeys(chosen.values()))
        program, places = with_effects(program, *effects)
        place = dict(zip(effects, places, strict=True))
        column = c.effect.copy()
        for row in range(program.num_rows):
            key = (names[c.effect[row]], int(c.stage[row]), int(c.microbatch[row]))
            if key in chosen:
                column[row] = place[chosen[key]]
        duties = tuple(replace_name(duty) for duty in program.tables.duties)
        return program.with_tables(duties=duties).with_columns(effect=column)

    def forward(self, chunk: int) -> Effect:
        """Reads of other chunks in the order of their numbers, behind the input and the parameters."""
        reads = tuple(
            embedding(other, age=int(not self._is_earlier(other, chunk))) for other in self.read(chunk)
        )
        return GRAPH_F._replace(reads=(*GRAPH_F.reads, *reads), writes=(*GRAPH_F.writes, embedding(chunk)))

    def backward(self, chunk: int) -> Effect:
        """Adds to the gradients of the chunks that its forward read as they are."""
        gradient = EMBEDDING_GRADIENT.name
        own = (
            (embedding(chunk, gradient),)
            if any(self._is_earlier(chunk, c) for c in self.readers(chunk))
            else ()
        )
        added = tuple(embedding(c, gradient) for c in self.read(chunk) if self._is_earlier(c, chunk))
        return GRAPH_B._replace(reads=(*GRAPH_B.reads, *own), writes=(*GRAPH_B.writes, *added))

    def read(self, chunk: int) -> tuple[int, ...]:
        """The chunks that a chunk reads."""
        return self.chunks.neighbours[chunk]

    def readers(self, chunk: int) -> list[int]:
        """The chunks that read a chunk."""
        return [other for other, read in enumerate(self.chunks.neighbours) if chunk in read]

    def _is_earlier(self, chunk: int, other: int) -> bool:
        return self.order.index(chunk) < self.order.index(other)


def replace_name(duty: Duty) -> Duty:
    """The duty of the name that stands for F, B or STEP here."""
    return duty._replace(name=f"GRAPH_{duty.name}")


def embedding(chunk: int, kind: str = EMBEDDING.name, age: int = 0) -> Pattern:
    """Of a chunk, on the row's own stage."""
    return Pattern(kind, index="stage", part_offset=chunk, age=age)
