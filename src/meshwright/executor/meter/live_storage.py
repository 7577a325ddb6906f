"""Bytes of live tensor storages while a function runs: measured memory, where no allocator counts.

On CPU every tensor that an operation returns is seen by a dispatch mode, and a finaliser on its storage says
when it dies; views and copies of a reference share a storage, which counts once. What a kernel allocates
for itself and frees before it returns is not seen. On CUDA the allocator's own statistics are read.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE, HOST = "device", "host"  # memory tiers, as value kinds name them


class StoragePoint(NamedTuple):
    """`bytes` were live from `time_s` (time.perf_counter) on."""

    time_s: float
    bytes: int


class Tier:
    """Bytes that are live in one memory, their peak, and every change of them where the curve is kept."""

    def __init__(self, keeps_curve: bool) -> None:
        self.current_bytes = self.peak_bytes = 0
        self.curve: list[StoragePoint] = []
        self._keeps_curve = keeps_curve

    def change(self, num_bytes: int) -> None:
        """So many bytes are born, or, with a minus sign, have died."""
        self.current_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        if self._keeps_curve:
            self.curve.append(StoragePoint(time.perf_counter(), self.current_bytes))


_birthplace = threading.local()


@contextlib.contextmanager
def born_on_host() -> Iterator[None]:
    """Storages that this thread makes in the block are of the host's memory: where the device is the CPU, nothing else
    tells them from its own."""
    before, _birthplace.tier = getattr(_birthplace, "tier", DEVICE), HOST
    try:
        yield
    finally:
        _birthplace.tier = before


class LiveStorage(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts the storages born inside it, and those it was told to count with `include`.

        with LiveStorage() as live:
            live.include(stage.parameters())
            step()
        live.peak_bytes

    It sees the operations of its own thread, autograd's backward on CPU among them, and those of other threads inside
    `in_thread`. Each operation becomes slower by tens of microseconds: measure time in another run. With `keeps_curve`
    every change is in `curve`, a step curve in time. `device`: storages on devices of `device_type`; `host`: those that
    are said to be the host's (`born_on_host`, `include`). Others are left out.
    """

    def __init__(self, device_type: str = "cpu", keeps_curve: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type = device_type
        self.device, self.host = Tier(keeps_curve), Tier(keeps_curve)
        self._lock = threading.RLock()  # a finaliser may run wherever its thread is, here among other places
        self._sizes: dict[int, tuple[Tier, int]] = {}
        self._finalisers: dict[int, weakref.finalize[..., Any]] = {}

    @property
    def current_bytes(self) -> int:
        """Live on the device now."""
        return self.device.current_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that was live on the device at once."""
        return self.device.peak_bytes

    @property
    def curve(self) -> list[StoragePoint]:
        """Of the device."""
        return self.device.curve

    def include(self, tensors: Iterable[Tensor], is_on_host: bool = False) -> None:
        """Count the storages of tensors that existed before, such as parameters and their gradients."""
        for tensor in tensors:
            self._count(tensor, is_on_host)
            if tensor.grad is not None:
                self._count(tensor.grad, is_on_host)

    def in_thread(self) -> contextlib.AbstractContextManager[Any]:
        """A context for another thread, whose operations are then counted here, too."""
        return _OtherThread(self)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and count what it returned."""
        return self.counted(func(*args, **(kwargs or {})))

    def counted(self, result: Any) -> Any:
        """What an operation has returned, once its tensors are counted."""
        is_on_host = getattr(_birthplace, "tier", DEVICE) == HOST
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf, is_on_host)
        return result

    def __exit__(self, *error: Any) -> None:
        """Stop counting; finalisers of what lives on are detached."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        with self._lock:
            for finaliser in self._finalisers.values():
                finaliser.detach()
            self._finalisers.clear()

    def _count(self, tensor: Tensor, is_on_host: bool) -> None:
        if tensor.layout != torch.strided or not (is_on_host or tensor.device.type == self.device_type):
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            tier, known = self._sizes.get(key, (self.host if is_on_host else self.device, None))
            if known is None:
                self._finalisers[key] = weakref.finalize(storage, self._forget, key)
                self._finalisers[key].atexit = False
            if known != size:
                self._sizes[key] = tier, size
                tier.change(size - (known or 0))

    def _forget(self, key: int) -> None:
        with self._lock:
            self._finalisers.pop(key, None)
            tier, size = self._sizes.pop(key)
            tier.change(-size)


class _OtherThread(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands on what the operations of one more thread return: a mode is entered once, by the thread it is for."""

    def __init__(self, live: LiveStorage) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live = live

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and let its result be counted."""
        return self._live.counted(func(*args, **(kwargs or {})))
