"""Schedules: the order of computes on stages, one file each. Fixed schedules take counts and nothing else."""

from meshwright.schedules.gpipe import gpipe
from meshwright.schedules.interleaved_1f1b import interleaved_1f1b
from meshwright.schedules.one_f_one_b import one_f_one_b
from meshwright.schedules.order import Compute, Orders, Schedule, read_compute, registered, schedule
from meshwright.schedules.zb_h1 import zb_h1

__all__ = [
    "Compute",
    "Orders",
    "Schedule",
    "gpipe",
    "interleaved_1f1b",
    "one_f_one_b",
    "read_compute",
    "registered",
    "schedule",
    "zb_h1",
]
