"""Probe 1: a ring step. Keys and values travel round four devices, half to the right and half to the left."""

from __future__ import annotations

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Exchange, Kind, Pattern, ValueKind, Work
from meshwright.ir.vocabulary import Name, Vocabulary

SIZE = 4


def of(kind: str, part: str = "zero", part_offset: int = 0) -> Pattern:
    return Pattern(kind, index="none", part=part, part_offset=part_offset)


HALVES, STATE = (of("from_left", "row"), of("from_right", "row")), of("state", "row")
SPLIT = Effect(Kind.COMPUTE, "split", (of("key_value"),), (of("from_left"), of("from_right"), of("state")))
ATTEND = Effect(Kind.COMPUTE, "attend", (of("query"), *HALVES, STATE), (of("state", "row", 1),))
FINISH = Effect(Kind.COMPUTE, "finish", (of("state", part_offset=SIZE),), (of("attended"),))
MOVES: list[tuple[Effect, str, Exchange]] = []
for _way, _kind, _shift in (("right", "from_left", 1), ("left", "from_right", -1)):
    _there = of(_kind, "row", 1)  # step s passes on what arrived at step s; it arrives there as part s + 1
    _give = Effect(Kind.SEND, f"GIVE_{_way.upper()}", (of(_kind, "row"),), moves=_there)
    _take = Effect(Kind.RECEIVE, f"TAKE_{_way.upper()}", (), (_there,))
    MOVES.append((_give, f"send/{_way}", Exchange(("cp",), None, _shift)))
    MOVES.append((_take, f"receive/{_kind}", Exchange(("cp",), None, _shift)))
CARRIED = ("query", "key_value", "attended")
PARTED = ("from_left", "from_right", "state")  # part: the ring step at which a half arrives, a state is used
VOCABULARY = Vocabulary.of(
    *(ValueKind(name, "none", microbatch=False, carried=name in CARRIED) for name in (*CARRIED, *PARTED)),
    *(Name(effect, "device") for effect in (SPLIT, ATTEND, FINISH)),
    *(Name(effect) for effect, *_ in MOVES),
    owner="tests.probes.ring_step_handlers",
)


def ring_step(slots: int = 2, streams: str = "four", batched: bool = False) -> Program:
    """Every device attends to all halves. ``slots`` a direction; ``streams``: four, or one for all."""
    halves = [ValueKind(half.kind, index="none", microbatch=False, ring=slots) for half in HALVES]
    duties = (Duty("split", "device"), Duty("attend", "device", SIZE), Duty("finish", "device"))
    builder = ProgramBuilder(
        [Axis("cp", SIZE)], vocabulary=VOCABULARY, value_kinds=halves, duties=duties, paths=((),)
    )
    for device in range(SIZE):
        builder.add(device, SPLIT, work=Work("split"))
        for step in range(SIZE):
            for effect, stream, exchange in MOVES if step < SIZE - 1 else ():
                place, batch = (stream if streams == "four" else "ring"), (step + 1 if batched else 0)
                builder.add(device, effect, part=step, stream=place, exchange=exchange, batch=batch)
            builder.add(device, ATTEND, part=step, work=Work("attend"))
        builder.add(device, FINISH, work=Work("finish"))
    return builder.build()
