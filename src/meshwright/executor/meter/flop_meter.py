"""FLOPs of the products that operations do while a function runs: what a rank computes, counted as it computes it.

A multiplication and an addition are two. Matrix products are counted by torch's formulas (`torch.utils.flop_counter`), and
attention's kernel on CPU, which torch has none for, by the pairs of a query and a key that it looks at.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Products of a forward and of a backward of attention, which makes its scores again: each of two FLOPs a number of a head.
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
# Those that add to what is there already have no formulas of their own.
_FORMULAS = {
    **flop_registry,
    torch.ops.aten.addmm_: flop_registry[torch.ops.aten.addmm],
    torch.ops.aten.baddbmm_: flop_registry[torch.ops.aten.baddbmm],
}
ATTENTION, PRODUCTS = "attention", "products"


class FlopMeter:
    """FLOPs by what they are for: ``attention`` between queries and keys, and ``products``, all of matrices.

        meter = FlopMeter()
        with meter.in_thread():
            step()
        meter.flops["products"]

    A context sees the operations of its own thread, autograd's backward on CPU among them.
    """

    def __init__(self) -> None:
        self.flops: Counter[str] = Counter()
        self._lock = threading.Lock()

    def in_thread(self) -> contextlib.AbstractContextManager[Any]:
        """A context for one thread; several may be open, in threads of their own."""
        return _Counting(self)

    def add(self, name: str, flops: float) -> None:
        """So many more."""
        with self._lock:
            self.flops[name] += flops  # type: ignore[assignment]  # counts of products are whole numbers


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of the thread that has entered it."""

    def __init__(self, meter: FlopMeter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._meter = meter

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and count it."""
        given = kwargs or {}
        result, packet = func(*args, **given), func._overloadpacket
        if packet is _FORWARD:
            self._meter.add(ATTENTION, _attention_flops(args[0], args[1], args[3:], given, FORWARD_PRODUCTS))
        elif packet is _BACKWARD:
            self._meter.add(ATTENTION, _attention_flops(args[1], args[2], args[6:], given, BACKWARD_PRODUCTS))
        elif packet in _FORMULAS:
            self._meter.add(PRODUCTS, _FORMULAS[packet](*args, **given, out_val=result))
        return result


def _attention_flops(query: Any, key: Any, rest: Any, given: dict[str, Any], num_products: int) -> float:
    """Of queries [B, H, s, D] and keys [B, H, m, D]; ``rest``: the dropout, and whether keys behind a query are left out."""
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    is_causal = given.get("is_causal", rest[1] if len(rest) > 1 else False)
    pairs = queries * keys - (queries * (queries - 1) / 2 if is_causal else 0)
    return float(2 * num_products * batch * heads * size * pairs)
