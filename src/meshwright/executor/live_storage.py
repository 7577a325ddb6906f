"""Bytes of live tensor storages while a function runs: measured memory, where no allocator counts.

On CPU every tensor that an operation returns is seen by a dispatch mode, and a finaliser on its storage says
when it dies; views and copies of a reference share a storage, which counts once. What a kernel allocates
for itself and frees before it returns is not seen. On CUDA the allocator's own statistics are read.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StoragePoint(NamedTuple):
    """`bytes` were live from `time_s` (time.perf_counter) on."""

    time_s: float
    bytes: int


class LiveStorage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts the storages born inside it, and those it was told to count with `include`.

        with LiveStorage() as live:
            live.include(stage.parameters())
            step()
        live.peak_bytes

    It sees the operations of its own thread, autograd's backward on CPU among them. Each operation becomes
    slower by tens of microseconds: measure time in another run. With `keeps_curve` every change is in `curve`, a step
    curve in time. Storages on other devices than `device_type` are left out.
    """

    def __init__(self, device_type: str = "cpu", keeps_curve: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type = device_type
        self.current_bytes = 0
        self.peak_bytes = 0
        self.curve: list[StoragePoint] = []
        self._keeps_curve = keeps_curve
        self._sizes: dict[int, int] = {}
        self._finalisers: dict[int, weakref.finalize[..., Any]] = {}

    def include(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of tensors that existed before, such as parameters and their gradients."""
        for tensor in tensors:
            self._count(tensor)
            if tensor.grad is not None:
                self._count(tensor.grad)

    def reset_peak(self) -> None:
        """The peak starts again from what is live now."""
        self.peak_bytes = self.current_bytes

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and count what it returned."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return result

    def __exit__(self, *error: Any) -> None:
        """Stop counting; finalisers of what lives on are detached."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for finaliser in self._finalisers.values():
            finaliser.detach()
        self._finalisers.clear()

    def _count(self, tensor: Tensor) -> None:
        if tensor.device.type != self.device_type or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self._sizes.get(key)
        if known is None:
            self._finalisers[key] = weakref.finalize(storage, self._forget, key)
            self._finalisers[key].atexit = False
        if known != size:
            self._sizes[key] = size
            self._change(size - (known or 0))

    def _forget(self, key: int) -> None:
        self._finalisers.pop(key, None)
        self._change(-self._sizes.pop(key))

    def _change(self, num_bytes: int) -> None:
        self.current_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        if self._keeps_curve:
            self.curve.append(StoragePoint(time.perf_counter(), self.current_bytes))


class MemoryUse(NamedTuple):
    """What `measure_memory` found, in bytes: live before, at the peak, and afterwards."""

    before_bytes: int
    peak_bytes: int
    after_bytes: int


def measure_memory(
    function: Callable[[], object], included: Iterable[Tensor] = (), device: torch.device | str = "cpu"
) -> MemoryUse:
    """Run `function` once and measure the device's memory, starting from the storages of `included`.

    On CUDA `included` is not needed: the allocator counts all that the process holds.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return _measure_cuda(function, device)
    with LiveStorage(device.type) as live:
        live.include(included)
        before = live.current_bytes
        live.reset_peak()
        result = function()
        after = live.current_bytes
        del result
    return MemoryUse(before, live.peak_bytes, after)


def _measure_cuda(function: Callable[[], object], device: torch.device) -> MemoryUse:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = function()
    torch.cuda.synchronize(device)
    use = MemoryUse(before, torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device))
    del result
    return use
