"""GEMS as a schedule: microbatches enter at either end in turn, and a device keeps one of them at a time."""

from __future__ import annotations

from meshwright.schedules import schedule


@schedule("gems", num_copies=2)
def gems(num_stages: int, num_microbatches: int) -> list[list[str]]:
    """The next microbatch comes back up right behind the backward of the one before it; keeps one activation a device."""
    return [
        [
            f"{num_stages - 1 - device if microbatch % 2 else device}{compute}{microbatch}"
            for microbatch in range(num_microbatches)
            for compute in "FB"
        ]
        for device in range(num_stages)
    ]
