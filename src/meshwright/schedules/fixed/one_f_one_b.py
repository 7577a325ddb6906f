"""1F1B: after a warm-up, one forward and one backward in turn, so that at most p - stage activations are kept."""

from __future__ import annotations

from meshwright.schedules.order import Compute, Orders, schedule


@schedule("1f1b")
def one_f_one_b(num_devices: int, num_microbatches: int) -> Orders:
    """Warm-up forwards, then F and B in turn, then the remaining B. Idle a device (p-1)(F+B); keeps min(p - stage, m).

    Source: PipeDream-Flush; Narayanan et al., arXiv 2104.04473.
    """
    return [_one_stage(stage, num_devices, num_microbatches) for stage in range(num_devices)]


def _one_stage(stage: int, num_devices: int, num_microbatches: int) -> list[Compute]:
    warmup = min(num_devices - stage - 1, num_microbatches)
    order = [Compute("F", stage, m) for m in range(warmup)]
    for m in range(num_microbatches - warmup):
        order += [Compute("F", stage, warmup + m), Compute("B", stage, m)]
    return order + [Compute("B", stage, m) for m in range(num_microbatches - warmup, num_microbatches)]
