"""Probe 4: a gate and an uneven all-to-all. How many tokens go where is known only at run time."""

from __future__ import annotations

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Pattern, Size, ValueBytes, ValueKind, Work
from meshwright.ir.vocabulary import Name, Vocabulary

TOKEN_BYTES = 8.0
EVERYBODY, SIZED = Exchange(("ep",)), Exchange(("ep",), size="routed", algorithm="all_to_all")


def of(*kinds: str) -> tuple[Pattern, ...]:
    return tuple(Pattern(kind, index="none") for kind in kinds)


GATE = Effect(Kind.COMPUTE, "gate", of("tokens"), of("sorted_tokens", "order", "leaving"))
COUNT = Effect(Kind.COLLECTIVE, "EXCHANGE_COUNTS", of("leaving"), of("arriving"))
DISPATCH = Effect(Kind.COLLECTIVE, "DISPATCH", of("sorted_tokens", "leaving", "arriving"), of("expert_input"))
EXPERT = Effect(Kind.COMPUTE, "expert", of("expert_input"), of("expert_output"))
COMBINE = Effect(Kind.COLLECTIVE, "COMBINE", of("expert_output", "arriving", "leaving"), of("returned"))
MERGE = Effect(Kind.COMPUTE, "merge", of("returned", "order"), of("combined"))
LIST = ((GATE, None), (COUNT, EVERYBODY), (DISPATCH, SIZED), (EXPERT, None), (COMBINE, SIZED), (MERGE, None))
CARRIED = ("tokens", "combined")
MADE = ("sorted_tokens", "order", "leaving", "arriving", "expert_input", "expert_output", "returned")
VOCABULARY = Vocabulary.of(
    *(ValueKind(name, "none", microbatch=False, carried=name in CARRIED) for name in (*CARRIED, *MADE)),
    *(Name(effect, "device") for effect, _ in LIST),
    owner="tests.probes.uneven_all_to_all_handlers",
)


def uneven_all_to_all(num_tokens: int = 6, size: int = 4) -> Program:
    """``num_tokens`` a device, each to the expert of one device: evenly expected, at most all of them at one."""
    builder = ProgramBuilder(
        [Axis("ep", size)],
        vocabulary=VOCABULARY,
        sizes=(Size("routed", num_tokens * TOKEN_BYTES, num_tokens * size * TOKEN_BYTES),),
        value_bytes=(
            ValueBytes("expert_input", size="routed"),
            ValueBytes("sorted_tokens", (num_tokens * TOKEN_BYTES,)),
        ),
        paths=((),),
    )
    for device in range(size):
        for effect, exchange in LIST:
            stream = "compute" if exchange is None else "all_to_all"
            builder.add(device, effect, stream=stream, exchange=exchange, work=Work(effect.name))
    return builder.build()


def bound_to(program: Program, received_tokens: list[int]) -> Program:
    """The program with its size as a trace had it: of the device that received most, which all wait for."""
    (size,) = program.tables.sizes
    return program.with_tables(sizes=(size._replace(expected=max(received_tokens) * TOKEN_BYTES),))
