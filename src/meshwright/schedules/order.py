"""The order of computes on devices: what a schedule returns, before anything is sent or reduced."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from meshwright.schedules.pipeline_times import PipelineTimes
from meshwright.specs.bound.bound import MOST_CELLS, MOST_STAGES, check_most
from meshwright.specs.error import CountError, ScheduleError


class Compute(NamedTuple):
    """One compute of an order: name, stage, microbatch."""

    name: str
    stage: int
    microbatch: int


Orders = list[list[Compute]]
# Which neighbours of an order may run beside each other, as one: a forward and the backward of another chunk behind it, or a
# backward and the forward of another microbatch behind it, which is one microbatch more in flight; "": none.
Pairs = Literal["", "forward first", "backward first"]
_TEXT = re.compile(r"(\d*)([A-Za-z]+)(\d+)")
COUNT = (int, Integral)  # the first is the quick question; NumPy's whole numbers are of the second


@dataclass(frozen=True)
class Schedule:
    """A schedule by name. ``function(num_devices, num_microbatches, num_chunks)`` returns one list of computes a device.

    ``num_chunks``: stages on a device unless the user says otherwise; one means always one. ``is_exact``: it takes no other
    number of them. ``chunk_step``: it takes multiples of this. ``device_step``: the same of devices. ``splits_backward``:
    the order has I and W. ``num_copies``: on so many devices a stage stands at most, each with a copy of its parameters.
    ``skips_stages``: microbatches may leave out stages between the first and the last. ``pairs``: forwards and backwards that
    may run as one without any stage waiting longer for the first of them; ends of such pairs come together.
    A function of the user's may take two arguments and return texts such as ``"F0"`` (the device's own stage) or ``"2F0"``.
    One whose order depends on where stages stand has a method ``timed(PipelineTimes)``, which gives the function for there.
    """

    name: str
    function: Callable[..., Sequence[Sequence[Any]]]
    num_chunks: int = 1
    splits_backward: bool = False
    summary: str = ""
    is_exact: bool = False
    chunk_step: int = 1
    device_step: int = 1
    num_copies: int = 1
    skips_stages: bool = False
    pairs: Pairs = ""

    @property
    def takes_times(self) -> bool:
        """Does its order depend on what stages and messages take where they stand?"""
        return hasattr(self.function, "timed")

    def timed(self, times: PipelineTimes) -> Schedule:
        """The schedule for there, of one that `takes_times`."""
        return replace(self, function=self.function.timed(times))  # type: ignore[attr-defined]

    def takes_devices(self, num_devices: int) -> bool:
        """Whether the schedule can run on so many devices."""
        return num_devices >= 1 and num_devices % self.device_step == 0

    def takes_chunks(self, num_chunks: int) -> bool:
        """Whether the schedule can put so many stages on a device."""
        if self.num_chunks == 1 or self.is_exact:
            return num_chunks == self.num_chunks
        return num_chunks >= 1 and num_chunks % self.chunk_step == 0

    def orders(self, num_devices: int, num_microbatches: int, num_chunks: int | None = None) -> Orders:
        """The computes of every device, in order.

        Raises:
            CountError: counts below one, or others that the schedule does not take.
            ScheduleError: the function returns something that is no order, or a stage on more devices than it says.
        """
        chunks = self.num_chunks if num_chunks is None else num_chunks
        self._check_counts(num_devices, num_microbatches, chunks)
        takes = len(inspect.signature(self.function).parameters)
        orders = read_orders(
            self.function(*(num_devices, num_microbatches, chunks)[: max(2, takes)]), f"schedule {self.name}"
        )
        if len(orders) != num_devices:
            raise ScheduleError(
                f"schedule {self.name} returned {len(orders)} lists for {num_devices} devices; return one list a device"
            )
        self._check_copies(orders)
        return orders

    def _check_copies(self, orders: Orders) -> None:
        stage, devices = max(devices_of_stages(orders).items(), key=lambda one: len(one[1]), default=(0, ()))
        if len(devices) > self.num_copies:
            raise ScheduleError(
                f"schedule {self.name}: stage {stage} stands on devices {', '.join(map(str, devices))}, which takes as many "
                f"copies of its parameters; give it one device, or say @schedule(..., num_copies={len(devices)})"
            )

    def _check_counts(self, num_devices: int, num_microbatches: int, num_chunks: int) -> None:
        counts: dict[str, Any] = {
            "devices": num_devices,
            "microbatches": num_microbatches,
            "chunks": num_chunks,
        }
        for what, count in counts.items():
            if not isinstance(count, Integral) or count < 1:
                raise CountError(f"schedule {self.name} was asked for {count} {what}; it takes 1 or more")
        if not self.takes_devices(num_devices):
            raise CountError(
                f"schedule {self.name} takes multiples of {self.device_step} devices and was asked for {num_devices}; take "
                f"{-(-num_devices // self.device_step) * self.device_step} devices, or another schedule"
            )
        if self.num_chunks == 1 and num_chunks != 1:
            raise CountError(
                f"schedule {self.name} has one stage a device, {num_chunks} chunks were asked for; "
                f"leave --chunks out, or take a schedule with several, such as interleaved_1f1b"
            )
        if not self.takes_chunks(num_chunks):
            allowed = f"exactly {self.num_chunks}" if self.is_exact else f"multiples of {self.chunk_step}"
            raise CountError(
                f"schedule {self.name} takes {allowed} chunks a device, {num_chunks} were asked for; give --chunks "
                f"{self.num_chunks}, or take interleaved_1f1b"
            )
        num_stages = num_devices * num_chunks
        check_most(f"stages of schedule {self.name}", num_stages, MOST_STAGES, CountError)
        check_most(
            f"stages x microbatches of schedule {self.name}",
            num_stages * num_microbatches,
            MOST_CELLS,
            CountError,
        )


def devices_of_stages(orders: Orders) -> dict[int, tuple[int, ...]]:
    """For every stage the devices that compute it."""
    found: dict[int, list[int]] = {}
    for device, row in enumerate(orders):
        for stage in set(map(itemgetter(1), row)):
            found.setdefault(stage, []).append(device)
    return {stage: tuple(devices) for stage, devices in found.items()}


def read_orders(lists: Any, whose: str) -> Orders:
    """The computes of every device from lists of what `read_compute` takes; `whose` begins the message where they are not."""
    if not isinstance(lists, list | tuple) or not all(isinstance(row, list | tuple) for row in lists):
        raise ScheduleError(
            f"{whose}: {repr(lists)[:60]} is no order; return one list of computes a device, such as [['F0', 'B0']]"
        )
    # what our own schedules return needs no reading; `program_of_orders` checks the numbers
    return [
        list(row) if set(map(type, row)) == {Compute} else [read_compute(item, device, whose) for item in row]
        for device, row in enumerate(lists)
    ]


def read_compute(item: Any, device: int, whose: str) -> Compute:
    """A compute from what a schedule returned: a `Compute`, a triple, or a text such as ``F0`` or ``2F0``."""
    if isinstance(item, str):
        match = _TEXT.fullmatch(item)
        if match is None:
            raise ScheduleError(
                f"{whose}, device {device}: {item!r} is no compute; write F0, B0, I0, W0, or 2F0 for stage 2"
            )
        stage, name, microbatch = match.groups()
        return Compute(name, int(stage) if stage else device, int(microbatch))
    if isinstance(item, tuple) and len(item) == 3:
        name, stage, microbatch = item
        are_counts = isinstance(stage, COUNT) and isinstance(microbatch, COUNT)
        if isinstance(name, str) and are_counts and stage >= 0 and microbatch >= 0:
            return item if type(item) is Compute else Compute(name, int(stage), int(microbatch))
    raise ScheduleError(
        f"{whose}, device {device}: {item!r} is no compute; "
        f"return texts such as 'F0', or (name, stage, microbatch) with numbers from 0"
    )


_REGISTERED: dict[str, Schedule] = {}


def schedule(
    name: str,
    *,
    num_chunks: int = 1,
    splits_backward: bool = False,
    is_exact: bool = False,
    chunk_step: int = 1,
    device_step: int = 1,
    num_copies: int = 1,
    skips_stages: bool = False,
    pairs: Pairs = "",
) -> Callable[[Callable[..., Sequence[Sequence[Any]]]], Callable[..., Sequence[Sequence[Any]]]]:
    """Decorator that gives a function of counts a name, for every command and check that ours get."""

    def register(function: Callable[..., Sequence[Sequence[Any]]]) -> Callable[..., Sequence[Sequence[Any]]]:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        counts = (chunk_step, device_step, num_copies, skips_stages)
        made = Schedule(name, function, num_chunks, splits_backward, summary, is_exact, *counts, pairs=pairs)
        known = _REGISTERED.setdefault(name, made)
        if known.function is not function and known.function.__qualname__ != function.__qualname__:
            raise ScheduleError(f"a schedule named {name!r} is registered already; choose another name")
        _REGISTERED[name] = made
        return function

    return register


def registered() -> dict[str, Schedule]:
    """All schedules that were registered so far, by name."""
    return dict(_REGISTERED)
