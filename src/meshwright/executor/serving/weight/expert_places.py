"""ExpertPlaces: weights of a few experts, read from the model's files when a cache says so, in a thread beside computing.

Shapes: T tokens, K experts a token, N rows sorted by expert, X experts of a layer, O, E, I outputs, hidden and inner units.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.executor.models.weights.hugging_face import HuggingFaceSource
from meshwright.executor.ops.expert.expert_mlp import expert_mlp
from meshwright.executor.serving.served_model import ServedModel
from meshwright.serving.weight.expert_place import Expert, ExpertCache, ExpertCounts, Swap
from meshwright.specs.error import ExecutionError

GATE_UP, DOWN = "expert_gate_up", "expert_down"


class ExpertWeights(NamedTuple):
    """The two matrices of an expert."""

    gate_up_OE: Tensor
    down_EI: Tensor

    @property
    def num_bytes(self) -> int:
        """Of both."""
        return self.gate_up_OE.nbytes + self.down_EI.nbytes


Read = Callable[[Expert], ExpertWeights]


class ExpertPlaces:
    """Computes with the experts of all layers, of which `cache` says who is here. ``counts``: what was seen so far.

    Experts come one after the other; whoever is to go while it still comes is waited for, so no more than the cache's places
    are ever taken. Not a `BlockWindow`: which expert is next is known when a layer is routed.
    """

    def __init__(self, cache: ExpertCache, read: Read) -> None:
        self.cache, self._read, self.counts = cache, read, ExpertCounts()
        self._lock = threading.Lock()
        self._here: dict[Expert, Future[ExpertWeights]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="experts")

    def through(self, layer: int, rows_NE: Tensor, counts_X: Tensor, experts_TK: Tensor) -> Tensor:
        """Every row through its expert: [N, E] -> [N, E].

        Raises ExecutionError where an expert cannot be read, or the cache breaks its word.
        """
        self.cache.begin(layer, experts_TK.cpu().numpy())
        returned_NE, first = torch.empty_like(rows_NE), 0
        for number, num_rows in enumerate(counts_X.tolist()):
            if num_rows:
                rows = slice(first, first + num_rows)
                own = self._use((layer, number))
                returned_NE[rows] = expert_mlp(
                    rows_NE[rows], counts_X[number : number + 1], own.gate_up_OE[None], own.down_EI[None]
                )
                first += num_rows
        for swap in self.cache.ahead():
            self._swap(swap)
            self.counts.came_ahead += 1
        return returned_NE

    def close(self) -> None:
        """Read no more, and let go of all experts."""
        self._thread.shutdown(cancel_futures=True)
        self._here.clear()

    def _use(self, expert: Expert) -> ExpertWeights:
        swap = self.cache.use(expert)
        if swap is None:
            self.counts.hits += 1
            found = self._here.get(expert)
            self.counts.waits += found is not None and not found.done()
        else:
            self.counts.misses += 1
            self._swap(swap)
        return self._come(expert)

    def _swap(self, swap: Swap) -> None:
        if swap.goes is not None:
            self._count_bytes(-self._come(swap.goes).num_bytes)
            del self._here[swap.goes]
        if len(self._here) >= self.cache.num_slots:
            raise ExecutionError(
                f"expert {swap.comes} is to come, and none of {self.cache.num_slots} places is free"
            )
        self._here[swap.comes] = self._thread.submit(self._read_one, swap.comes)

    def _come(self, expert: Expert) -> ExpertWeights:
        if expert not in self._here:
            raise ExecutionError(f"the cache of experts says that expert {expert} is here, which never came")
        try:
            return self._here[expert].result()
        except Exception as error:
            raise ExecutionError(f"expert {expert} of the weights did not come: {error}") from error

    def _read_one(self, expert: Expert) -> ExpertWeights:
        with torch.inference_mode():  # of this thread
            found = self._read(expert)
        self._count_bytes(found.num_bytes)
        return found

    def _count_bytes(self, num_bytes: int) -> None:
        with self._lock:
            self.counts.add_bytes(num_bytes)


def expert_reader(served: ServedModel, dtype: torch.dtype, device: torch.device) -> Read:
    """Reads an expert of a model, in memory of its own. Files that hold a layer's experts as one tensor are read whole for
    one, and so is what is drawn."""
    shapes, source = served.names.our_shapes(), served.source

    def matrix(layer: int, number: int, module: str) -> Tensor:
        name = f"layers.{layer}.mixture.{module}.weight"
        if isinstance(source, HuggingFaceSource):
            return source.expert_value(name, number, shapes[name], dtype).to(device)
        return source.value(name, shapes[name], dtype)[number].to(device, copy=True)

    return lambda expert: ExpertWeights(matrix(*expert, GATE_UP), matrix(*expert, DOWN))
