"""Eager 1F1B as a schedule."""

from __future__ import annotations


def eager_1f1b(num_devices: int, num_microbatches: int) -> list[list[str]]:
    """Twice the forwards of 1F1B ahead of the first backward, then one of each in turn."""
    orders = []
    for stage in range(num_devices):
        ahead = min(2 * (num_devices - stage) - 1, num_microbatches)
        order = [f"F{k}" for k in range(ahead)]
        for k in range(num_microbatches):
            order.append(f"B{k}")
            order += [f"F{ahead + k}"] * (ahead + k < num_microbatches)
        orders.append(order)
    return orders
