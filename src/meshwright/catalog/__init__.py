"""Finds models, devices, clusters, schedules, passes, systems and slots by name, lazily; and a user's own code."""

from meshwright.catalog.listing import (
    DETECTED,
    KINDS,
    PASSES,
    SLOT_KINDS,
    find_pass,
    find_schedule,
    names,
    pass_summary,
)
from meshwright.catalog.slots import SLOTS, cards, described, filler, job_runner, slot_names
from meshwright.catalog.user_file import import_file

__all__ = [
    "DETECTED",
    "KINDS",
    "PASSES",
    "SLOTS",
    "SLOT_KINDS",
    "cards",
    "described",
    "filler",
    "find_pass",
    "find_schedule",
    "import_file",
    "job_runner",
    "names",
    "pass_summary",
    "slot_names",
]
