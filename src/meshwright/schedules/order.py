"""The order of computes on devices: what a schedule returns, before anything is sent or reduced."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwright.specs.error import ScheduleError


class Compute(NamedTuple):
    """One compute of an order: name, stage, microbatch."""

    name: str
    stage: int
    microbatch: int


Orders = list[list[Compute]]
_TEXT = re.compile(r"(\d*)([A-Za-z]+)(\d+)")


@dataclass(frozen=True)
class Schedule:
    """A schedule by name. ``function(num_devices, num_microbatches, num_chunks)`` returns one list of computes a device.

    ``num_chunks``: stages on a device unless the user says otherwise. ``splits_backward``: the order has I and W.
    A function of the user's may take two arguments and return texts such as ``"F0"`` (the device's own stage) or ``"2F0"``.
    """

    name: str
    function: Callable[..., Sequence[Sequence[Any]]]
    num_chunks: int = 1
    splits_backward: bool = False
    summary: str = ""

    def orders(self, num_devices: int, num_microbatches: int, num_chunks: int | None = None) -> Orders:
        """The computes of every device, in order.

        Raises:
            ScheduleError: counts below one, or the function returns something that is no order.
        """
        chunks = self.num_chunks if num_chunks is None else num_chunks
        for what, count in (("devices", num_devices), ("microbatches", num_microbatches), ("chunks", chunks)):
            if count < 1:
                raise ScheduleError(f"schedule {self.name} was asked for {count} {what}; it takes 1 or more")
        if self.num_chunks == 1 and chunks != 1:
            raise ScheduleError(
                f"schedule {self.name} has one stage a device, {chunks} chunks were asked for; "
                f"leave --chunks out, or take interleaved_1f1b"
            )
        takes = len(inspect.signature(self.function).parameters)
        lists = self.function(*(num_devices, num_microbatches, chunks)[: max(2, takes)])
        if len(lists) != num_devices:
            raise ScheduleError(
                f"schedule {self.name} returned {len(lists)} lists for {num_devices} devices; return one list a device"
            )
        return [[read_compute(item, device, self.name) for item in row] for device, row in enumerate(lists)]


def read_compute(item: Any, device: int, schedule: str) -> Compute:
    """A compute from what a schedule returned: a `Compute`, a triple, or a text such as ``F0`` or ``2F0``."""
    if isinstance(item, Compute):
        return item
    if isinstance(item, str):
        match = _TEXT.fullmatch(item)
        if match is None:
            raise ScheduleError(
                f"schedule {schedule}, device {device}: {item!r} is no compute; write F0, B0, I0, W0, or 2F0 for stage 2"
            )
        stage, name, microbatch = match.groups()
        return Compute(name, int(stage) if stage else device, int(microbatch))
    if isinstance(item, tuple) and len(item) == 3:
        return Compute(str(item[0]), int(item[1]), int(item[2]))
    raise ScheduleError(
        f"schedule {schedule}, device {device}: {item!r} is no compute; "
        f"return texts such as 'F0', or (name, stage, microbatch)"
    )


_REGISTERED: dict[str, Schedule] = {}


def schedule(
    name: str, *, num_chunks: int = 1, splits_backward: bool = False
) -> Callable[[Callable[..., Sequence[Sequence[Any]]]], Callable[..., Sequence[Sequence[Any]]]]:
    """Decorator that gives a function of counts a name, for every command and check that ours get."""

    def register(function: Callable[..., Sequence[Sequence[Any]]]) -> Callable[..., Sequence[Sequence[Any]]]:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        made = Schedule(name, function, num_chunks, splits_backward, summary)
        known = _REGISTERED.setdefault(name, made)
        if known.function is not function and known.function.__qualname__ != function.__qualname__:
            raise ScheduleError(f"a schedule named {name!r} is registered already; choose another name")
        _REGISTERED[name] = made
        return function

    return register


def registered() -> dict[str, Schedule]:
    """All schedules that were registered so far, by name."""
    return dict(_REGISTERED)
