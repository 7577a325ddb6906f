"""Probe 5: an optimizer step on states in host memory: load a unit, update it, store it, through a window of two."""

from __future__ import annotations

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Kind, Pattern, ValueBytes, ValueKind, Work
from meshwright.ir.vocabulary import Name, Vocabulary

WINDOW = 2
UNIT_BYTES = 100.0


def of(kind: str) -> Pattern:
    return Pattern(kind, index="none", part="row")


LOAD_UNIT = Effect(Kind.LOAD, "LOAD_UNIT", (of("host_state"),), (of("window"),))
UPDATE_UNIT = Effect(Kind.COMPUTE, "update_unit", (of("window"),), (of("updated"),))
STORE_UNIT = Effect(Kind.STORE, "STORE_UNIT", (of("updated"),), (of("host_state"),))
STORE_SLOT = STORE_UNIT._replace(
    reads=(of("updated"), of("window"))
)  # the update is in the slot: it stays until stored
VOCABULARY = Vocabulary.of(
    ValueKind("host_state", index="none", microbatch=False, carried=True, tier="host"),
    ValueKind("window", index="none", microbatch=False),
    ValueKind("updated", index="none", microbatch=False),
    *(Name(LOAD_UNIT), Name(STORE_UNIT), Name(UPDATE_UNIT, "device")),
    owner="tests.probes.offloaded_step_handlers",
)


def offloaded_step(num_units: int = 8, reads_slot: bool = False, window: int = WINDOW) -> Program:
    """Units one behind the other; part: the unit. ``reads_slot``: the store reads the slot, not a buffer of its own."""
    builder = ProgramBuilder(
        [Axis("dp", 1)],
        vocabulary=VOCABULARY,
        value_kinds=[ValueKind("window", index="none", microbatch=False, ring=window)],
        value_bytes=(ValueBytes("window", (UNIT_BYTES,)), ValueBytes("host_state", (UNIT_BYTES,))),
        duties=tuple(Duty(name, "device", num_units) for name in ("LOAD_UNIT", "STORE_UNIT", "update_unit")),
        paths=((),),
    )
    for unit in range(min(window, num_units)):
        builder.add(0, LOAD_UNIT, part=unit, stream="load", work=Work("LOAD_UNIT"))
    for unit in range(num_units):
        builder.add(0, UPDATE_UNIT, part=unit, work=Work("update_unit"))
        builder.add(
            0, STORE_SLOT if reads_slot else STORE_UNIT, part=unit, stream="store", work=Work("STORE_UNIT")
        )
        if unit + window < num_units:
            builder.add(0, LOAD_UNIT, part=unit + window, stream="load", work=Work("LOAD_UNIT"))
    return builder.build()
