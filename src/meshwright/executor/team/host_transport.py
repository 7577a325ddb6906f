"""HostTransport: exchanges of members on one host, in memory that they share.

Everyone writes what it has into its slot, and reads what the others have from theirs; sums are made in the order of the
members, so that all have the same bits. What is larger than a slot goes in several turns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.team.gloo_transport import GlooTransport
from meshwright.executor.team.host_memory import SLOT_BYTES, HostMemory

ALIGNED_BYTES = 64  # columns of a slot begin where lines of a cache do
# (bytes of a column that went before, bytes of it in this turn, where in a slot this member's column begins)
Take = Callable[[int, int, int], None]


class HostExchange:
    """One of a transport, under way from its first turn's post on."""

    def __init__(self, transport: HostTransport, turns: Iterator[None]) -> None:
        self._transport, self.turns, self.is_done = transport, turns, False

    def wait(self) -> None:
        """Return when it has ended."""
        self._transport.complete(self)


class HostTransport:
    """Exchanges by the turns of a `HostMemory`, one behind the other in the order in which they were started."""

    def __init__(self, memory: HostMemory, group: Any) -> None:
        self.group, self._memory = group, memory
        self._under_way: deque[HostExchange] = deque()
        self._lock = threading.Lock()  # members of a batch are waited for by threads of their own

    def rank(self) -> int:
        """The member's number."""
        return self._memory.number

    def size(self) -> int:
        """How many they are."""
        return self._memory.size

    def gather(self, whole: Tensor) -> list[Any]:
        """One column; those of the others to their places."""
        parts = whole.chunk(self.size())
        others = [member for member in range(self.size()) if member != self.rank()]

        def take(low: int, num_bytes: int, column: int) -> None:
            for member in others:
                self._memory.read(member, column, parts[member].data_ptr() + low, num_bytes)

        return [self._start({0: parts[self.rank()]}, 1, take)]

    def swap(self, sent: Tensor, received: Tensor) -> list[Any]:
        """By messages, as are uneven exchanges, which have the same price."""
        return GlooTransport(self.group).swap(sent, received)

    def scatter_sum(self, whole: Tensor) -> Tensor:
        """A column for every other member; the own part is added in its place."""
        parts, number = whole.detach().chunk(self.size()), self.rank()
        columns = {member: part for member, part in enumerate(parts) if member != number}
        total, own = torch.empty_like(parts[number]), parts[number].view(-1)

        def take(low: int, num_bytes: int, column: int) -> None:
            piece = slice(low // whole.itemsize, (low + num_bytes) // whole.itemsize)
            terms = [
                own[piece] if member == number else self._column(member, column, num_bytes, whole.dtype)
                for member in range(self.size())
            ]
            _combine(terms, torch.add, total.view(-1)[piece])

        self._start(columns, self.size(), take).wait()
        return total

    def combining(self, tensor: Tensor, *, is_maximum: bool, in_place: bool) -> Callable[[], Tensor]:
        """One column; all that are in it, in the order of the members."""
        given = tensor.detach().contiguous()
        total = given if in_place else torch.empty_like(given)
        flat, operation = total.view(-1), torch.maximum if is_maximum else torch.add

        def take(low: int, num_bytes: int, column: int) -> None:
            terms = [self._column(member, column, num_bytes, total.dtype) for member in range(self.size())]
            _combine(terms, operation, flat[low // total.itemsize : (low + num_bytes) // total.itemsize])

        exchange = self._start({0: given}, 1, take)

        def result() -> Tensor:
            exchange.wait()
            if not in_place:
                return total
            return tensor if tensor.is_contiguous() else tensor.copy_(total)

        return result

    def _column(self, member: int, column: int, num_bytes: int, dtype: torch.dtype) -> Tensor:
        return self._memory.view(member, column, dtype, num_bytes // dtype.itemsize)

    def _start(self, columns: Mapping[int, Tensor], num_columns: int, take: Take) -> HostExchange:
        """Post the first turn where nothing else is under way. `columns`: what of the own slot is for whom, of equal size."""
        exchange = HostExchange(self, self._turns(columns, num_columns, take))
        with self._lock:
            self._under_way.append(exchange)
            if len(self._under_way) == 1:
                next(exchange.turns, None)
        return exchange

    def complete(self, exchange: HostExchange) -> None:
        """Take the turns of all exchanges up to this one."""
        with self._lock:
            while not exchange.is_done:
                first = self._under_way[0]
                for _ in first.turns:
                    pass
                first.is_done = True
                self._under_way.popleft()
                if self._under_way:
                    next(self._under_way[0].turns, None)

    def _turns(self, columns: Mapping[int, Tensor], num_columns: int, take: Take) -> Iterator[None]:
        """All turns of an exchange; it stops behind every post, before it waits."""
        memory, width = self._memory, SLOT_BYTES // num_columns // ALIGNED_BYTES * ALIGNED_BYTES
        total = next(iter(columns.values())).nbytes
        own_column = width * self.rank() if num_columns > 1 else 0
        for low in range(0, total, width):
            num_bytes = min(width, total - low)
            memory.begin()
            for place, source in columns.items():
                memory.write(place * width, source.data_ptr() + low, num_bytes)
            memory.post()
            yield
            memory.wait()
            take(low, num_bytes, own_column)


def _combine(terms: list[Tensor], operation: Callable[..., Tensor], out: Tensor) -> None:
    """Of all terms, in their order."""
    operation(terms[0], terms[1], out=out)
    for term in terms[2:]:
        operation(out, term, out=out)
