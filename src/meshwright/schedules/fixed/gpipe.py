"""GPipe: all forwards, then all backwards in reverse order."""

from __future__ import annotations

from meshwright.schedules.order import Compute, Orders, schedule


@schedule("gpipe")
def gpipe(num_devices: int, num_microbatches: int) -> Orders:
    """All forwards, then all backwards, last microbatch first. Idle a device (p-1)(F+B); keeps all m activations.

    Source: Huang et al., GPipe, arXiv 1811.06965.
    """
    return [
        [Compute("F", stage, m) for m in range(num_microbatches)]
        + [Compute("B", stage, m) for m in reversed(range(num_microbatches))]
        for stage in range(num_devices)
    ]
