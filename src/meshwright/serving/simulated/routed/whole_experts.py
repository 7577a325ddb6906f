"""What one device computes of a layer whose experts are divided among the devices that have all tokens: no token is sent.

Letters: T tokens, k experts a token goes to, R = T k rows, G devices that have whole experts, D rows of the busiest of them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from meshwright.specs.model.block import Experts
from meshwright.specs.operator import Operator
from meshwright.stage.operator.layer import MicrobatchShape

MOST_DEVIATIONS = 12.0  # of the mean, beyond which a device's rows are as good as never
KEPT_BATCHES = 1 << 14  # numbers of rows whose busiest device is remembered


def of_whole_experts(shape: MicrobatchShape, experts: Experts) -> MicrobatchShape:
    """The shape with rows for the busiest device's experts, of routing as uneven as it says, or as chance makes it where that
    is more: the others wait for it at the sum behind the layer."""
    num_rows, num_routed = shape.num_tokens * experts.num_experts_per_token, _num_routed_rows(shape, experts)
    by_routing = shape.expert_load * num_rows / shape.ep
    rows = max(by_routing, busiest_rows(num_rows, shape.ep))
    return shape._replace(expert_load=rows / num_routed)


def with_all_tokens(operator: Operator, shape: MicrobatchShape, experts: Experts, hidden: int) -> Operator:
    """An operator that is no product as it is here, where a device routes every token, copies the rows that its experts want,
    and adds these to a row for every token. `shape`: of `of_whole_experts`."""
    num_tokens, rows = shape.num_tokens, shape.num_expert_rows(experts.num_experts_per_token)
    if operator.kind == "routing":
        share = num_tokens / shape.num_routed_tokens
        dims = (num_tokens, *operator.shape[1:])
        return replace(operator, flops=operator.flops * share, bytes=operator.bytes * share, shape=dims)
    if operator.kind != "permutation":
        return operator
    touched, per_number = (rows + num_tokens, 2) if operator.label == "combine" else (2 * rows, 0)
    num_bytes = float(touched * hidden * shape.element_bytes)
    return replace(operator, flops=per_number * rows * hidden, bytes=num_bytes, shape=(rows, hidden))


@lru_cache(KEPT_BATCHES)
def busiest_rows(num_rows: int, num_devices: int) -> float:
    """Rows of the busiest of G devices in the mean, where each of R rows takes any of them alike.

    The largest of G Poisson numbers of mean R / G, sum over m of 1 - P(X <= m)^G: numbers of rows are such, given that they
    add up to R, and by what they differ from their own mean knows nothing of it. Never less than an even split, nor more than
    R.
    """
    if num_devices == 1 or num_rows == 0:
        return float(num_rows)
    mean = num_rows / num_devices
    most = math.ceil(mean + MOST_DEVIATIONS * max(1.0, math.sqrt(mean)))
    logarithms = np.cumsum(np.log(mean / np.arange(1, most + 1))) - mean
    below = np.minimum(1.0, np.exp(np.concatenate([[-mean], logarithms])).cumsum())
    found = float((1.0 - below**num_devices).sum())
    return min(float(num_rows), max(found, float(-(-num_rows // num_devices))))


def _num_routed_rows(shape: MicrobatchShape, experts: Experts) -> int:
    return shape.num_routed_tokens * experts.num_experts_per_token
