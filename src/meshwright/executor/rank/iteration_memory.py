"""Memory curves of one iteration of a rank, for every tier that its program knows: what is live, seen storage by storage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from meshwright.executor.meter.live_storage import DEVICE, HOST, LiveStorage, StoragePoint
from meshwright.executor.rank.context import Context
from meshwright.ir.program import Program

Curves = dict[str, list[StoragePoint]]
# Given a maker of contexts, lets handlers on streams run inside one each (`Interpreter.watch`).
Watch = Callable[[Callable[[], contextlib.AbstractContextManager[Any]]], None]


def iteration_curves(context: Context, program: Program, watch: Watch, run: Callable[[], None]) -> Curves:
    """The curve of live bytes of every tier while `run` runs; times in seconds from its begin on."""
    with LiveStorage(context.device.type, keeps_curve=True) as live:
        _include_held(context, live)
        has_host = any(kind.tier == HOST for kind in program.tables.value_kinds)
        tiers = {DEVICE: live.device} | ({HOST: live.host} if has_host else {})
        begin_s = time.perf_counter()
        first = {name: StoragePoint(0.0, tier.current_bytes) for name, tier in tiers.items()}
        watch(live.in_thread)
        run()
        watch(contextlib.nullcontext)
    curves = {}
    for name, tier in tiers.items():
        points = [StoragePoint(point.time_s - begin_s, point.bytes) for point in tier.curve]
        curves[name] = [first[name], *(point for point in points if point.time_s >= 0.0)]
    return curves


def _include_held(context: Context, live: LiveStorage) -> None:
    """Count what lives before the iteration begins."""
    if context.training is None:
        return
    live.include(context.training.tensors())
    for group in context.training.groups.values():
        live.include(group.moments.tensors(), is_on_host=True)
        states = {} if group.step.optimizer is None else group.step.optimizer.state
        kept = (value for slot in states.values() for value in slot.values())
        live.include(value for value in kept if isinstance(value, Tensor))
