"""ZB-H1: 1F1B with the backward split; weight gradients fill the bubbles at the memory of 1F1B."""

from __future__ import annotations

from meshwright.schedules.order import Compute, Orders, schedule


@schedule("zb_h1", splits_backward=True)
def zb_h1(num_devices: int, num_microbatches: int) -> Orders:
    """1F1B's order of F and I, with W held back by as many microbatches as the stage has before it.

    Idle a device (p-1)(F+I-W) for F >= W, I >= W, m >= p; keeps at most p activations on every stage.
    Source: Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241.
    """
    return [_one_stage(stage, num_devices, num_microbatches) for stage in range(num_devices)]


def _one_stage(stage: int, num_devices: int, num_microbatches: int) -> list[Compute]:
    warmup = min(num_devices - stage - 1, num_microbatches)
    order = [Compute("F", stage, m) for m in range(warmup)]
    for m in range(num_microbatches):
        if warmup + m < num_microbatches:
            order.append(Compute("F", stage, warmup + m))
        order.append(Compute("I", stage, m))
        if m >= stage:
            order.append(Compute("W", stage, m - stage))
    first_left = max(0, num_microbatches - stage)
    return order + [Compute("W", stage, m) for m in range(first_left, num_microbatches)]
