"""Schedules: the order of computes on stages, one file each. Fixed schedules take counts and nothing else."""

from meshwright.schedules.fixed.breadth_first import breadth_first
from meshwright.schedules.fixed.controllable_memory import v_half, v_min
from meshwright.schedules.fixed.dualpipe import dualpipe
from meshwright.schedules.fixed.dualpipe_v import dualpipe_v
from meshwright.schedules.fixed.gpipe import gpipe
from meshwright.schedules.fixed.hanayo import hanayo
from meshwright.schedules.fixed.interleaved_1f1b import interleaved_1f1b
from meshwright.schedules.fixed.one_f_one_b import one_f_one_b
from meshwright.schedules.fixed.v_1f1b import v_1f1b
from meshwright.schedules.fixed.zb_h1 import zb_h1
from meshwright.schedules.fixed.zb_h2 import zb_h2
from meshwright.schedules.fixed.zbv import zbv
from meshwright.schedules.order import Compute, Orders, Schedule, read_compute, registered, schedule

__all__ = [
    "Compute",
    "Orders",
    "Schedule",
    "breadth_first",
    "dualpipe",
    "dualpipe_v",
    "gpipe",
    "hanayo",
    "interleaved_1f1b",
    "one_f_one_b",
    "read_compute",
    "registered",
    "schedule",
    "v_1f1b",
    "v_half",
    "v_min",
    "zb_h1",
    "zb_h2",
    "zbv",
]
