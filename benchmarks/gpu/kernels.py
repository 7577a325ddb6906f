"""Fresh times of the operators of a model on the device, beside what the curve of its kind says of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from meshwright.costs.kernel.curve import GpuKernels, family_of
from meshwright.costs.roofline import Roofline
from meshwright.executor.measure.operators import OperatorTime, measure_operators
from meshwright.specs import Cluster, ModelSpec
from meshwright.specs.model.layers import stage_layers
from meshwright.specs.operator import Operator
from meshwright.stage.operator.layer import MicrobatchShape
from meshwright.stage.operator.stage import stage_operators

from .part import Part

DTYPE = "bfloat16"
PASSES = ("F", "I", "W")
HEADER = "| operator | shapes | measured / curve, median | least | most | of the time measured |"


def operators_of(model: ModelSpec, num_sequences: int, sequence_length: int) -> tuple[Operator, ...]:
    """The distinct operators of a whole model on one device."""
    layers, shape = (
        stage_layers((model.num_layers,))[0],
        MicrobatchShape(num_sequences, sequence_length, dtype=DTYPE),
    )
    return tuple(dict.fromkeys(op for name in PASSES for op in stage_operators(model, layers, name, shape)))


def kernels(operators: Sequence[Operator], kind: str, device: str = "cuda", dtype: str = DTYPE) -> Part:
    """Each operator alone. ``kind``: whose curve is asked; where it has none, the times stand alone."""
    timed, unknown = measure_operators(operators, device, dtype)
    cluster = Cluster(f"1x{kind}") if kind else None
    curve = None
    if cluster is not None and family_of(cluster.devices[0]) is not None:
        curve = GpuKernels(cluster.devices[0], Roofline(cluster))
    rows = [
        {
            "operator": each.operator.variant, "shape": list(each.operator.shape), "seconds": each.seconds,
            "spread": each.spread, "count": each.operator.count,
            "curve_s": None if curve is None else curve.operator(each.operator, DTYPE).seconds,
        }
        for each in timed
    ]  # fmt: skip
    lines = [f"{len(timed)} operators in {dtype}, launches issued ahead.", ""]
    if curve is not None:
        lines += [HEADER, "|---" * 6 + "|", *_lines(timed, curve)]
    else:
        lines.append(f"No curve is known of {kind or 'this device'}.")
    lines += ["", *(f"- no case of {each.variant} {each.shape}" for each in unknown)]
    used = [torch.cuda.get_device_name()] if device == "cuda" else []
    return Part("kernels", "passed" if rows else "skipped", len(rows), lines, {"on": used, "rows": rows})


def _lines(timed: Sequence[OperatorTime], curve: GpuKernels) -> list[str]:
    """One row a kind of operator; counts weigh its share of the time."""
    ratios: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    for each in timed:
        name = each.operator.variant
        ratios.setdefault(name, []).append(each.seconds / curve.operator(each.operator, DTYPE).seconds)
        seconds[name] = seconds.get(name, 0.0) + each.seconds * each.operator.count
    total = sum(seconds.values())
    return [
        f"| {name} | {len(found)} | {statistics.median(found):.2f} | {min(found):.2f} | {max(found):.2f} "
        f"| {seconds[name] / total:.1%} |"
        for name, found in sorted(ratios.items(), key=lambda item: -seconds[item[0]])
    ]
