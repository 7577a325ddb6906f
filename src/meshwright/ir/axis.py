"""The axis along which paths go, and which stage of a device owns a group it uses several times."""

from __future__ import annotations

from meshwright.ir.program import Program

FIRST_AXIS = "pp"


def owns(program: Program, stage: int, group: int, device: int) -> bool:
    """Is it the last stage on the device that uses the group? That one reduces and steps it there, once."""
    t = program.tables
    return stage == max(s for s in t.groups[group].stages if device in t.devices_of_stage[s])
