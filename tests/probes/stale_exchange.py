"""Probe 3: a stale exchange. Each device uses what its neighbours had one iteration ago, so nobody waits for a message."""

from __future__ import annotations

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Pattern, ValueKind, Work
from meshwright.ir.vocabulary import Name, Vocabulary

NEXT = Exchange(("patch",), None, +1)


def of(kind: str, age: int = 0) -> Pattern:
    return Pattern(kind, index="none", age=age)


ENCODE = Effect(Kind.COMPUTE, "encode", (of("patch"),), (of("feature"),))
DENOISE = Effect(Kind.COMPUTE, "denoise", (of("feature"), of("halo", age=1)), (of("patch"), of("used")))
GIVE = Effect(Kind.SEND, "GIVE_FEATURE", (of("feature"),))
TAKE = Effect(Kind.RECEIVE, "TAKE_FEATURE", (), (of("halo"),), moves=of("feature"))
VOCABULARY = Vocabulary.of(
    ValueKind("patch", index="none", microbatch=False, carried=True),
    ValueKind("used", index="none", microbatch=False, carried=True),  # by the last denoise, to see it
    ValueKind("feature", index="none", microbatch=False),
    ValueKind("halo", index="none", microbatch=False),
    *(Name(ENCODE, "device"), Name(DENOISE, "device"), Name(GIVE), Name(TAKE)),
    owner="tests.probes.stale_exchange_handlers",
)


def stale_exchange(age: int = 1, size: int = 3) -> Program:
    """Every device encodes its patch, gives that to the next one, and denoises with the halo of ``age`` iterations ago."""
    builder = ProgramBuilder([Axis("patch", size)], vocabulary=VOCABULARY, paths=((),))
    denoise = DENOISE._replace(reads=(of("feature"), of("halo", age=age)))
    for device in range(size):
        builder.add(device, ENCODE, work=Work("encode"))
        builder.add(device, GIVE, stream="send/next", exchange=NEXT, work=Work("exchange"))
        builder.add(device, TAKE, stream="receive/previous", exchange=NEXT, work=Work("exchange"))
        builder.add(device, denoise, work=Work("denoise"))
    return builder.build()
