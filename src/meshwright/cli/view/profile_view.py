"""The few numbers of a profile that people know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from meshwright.reports.chart.quantity import quantity
from meshwright.specs.dtype import dtype_bytes

ADD_TOUCHES = 3  # arrays that a sum of two into a third touches


def profile_figures(profile: Any) -> dict[str, Any]:
    """The few numbers of a profile that people know: best matrix rate, memory rate, messages."""
    matrices = [2 * math.prod(sample.shape) / sample.seconds for sample in profile.samples("matmul")]
    largest = max(profile.samples("elementwise"), key=lambda sample: math.prod(sample.shape), default=None)
    touched = 0 if largest is None else ADD_TOUCHES * dtype_bytes(profile.dtype) * math.prod(largest.shape)
    messages = profile.samples("send_receive")
    return {
        "matmul_flops_per_s": max(matrices, default=None),
        "memory_bytes_per_s": None if largest is None else touched / largest.seconds,
        "message_latency_s": min((sample.seconds for sample in messages), default=None),
        "message_bytes_per_s": max((sample.shape[0] / sample.seconds for sample in messages), default=None),
        "constants": dict(profile.constants),
        "num_samples": sum(len(samples) for samples in profile.tables.values()) + len(profile.passes),
    }


def profile_view(profile: Any) -> Sequence[Any]:
    """Those numbers as lines."""
    figures = profile_figures(profile)
    rows = [
        ("matrix products", quantity(figures["matmul_flops_per_s"], "FLOP/s") + " a process"),
        ("memory", quantity(figures["memory_bytes_per_s"], "B/s") + " a process"),
        ("gloo latency", quantity(figures["message_latency_s"], "s")),
        ("gloo bandwidth", quantity(figures["message_bytes_per_s"], "B/s") + " each way"),
    ]
    slowdown = profile.constants.get("compute_slowdown")
    rows += [("compute beside a transfer", f"{slowdown:.2f}x as long")] if slowdown else []
    factors = ", ".join(f"{factor:.2f}" for factor in profile.process_factors)
    rows += [("computes by process", f"{factors} times the mean")] if factors else []
    head = f"{profile.device}, {profile.num_processes} processes, {figures['num_samples']} samples"
    return [Text(head, style="bold"), *(Text(f"  {name:<26}{value}") for name, value in rows)]
