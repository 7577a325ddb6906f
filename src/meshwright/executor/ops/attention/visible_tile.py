"""Which keys of a block a rank's queries see, as rectangles: what a kernel computes at once.

Shapes: B samples, S tokens of a sequence, s queries here, m keys of the block.

Queries and keys have places in their sequence that rise, so the number of keys that a query sees rises with it. Where it
stays the same all of them are seen, where it rises by one the rectangle is causal, and where it is zero nothing is done: of a
zigzag ring this leaves the whole block's triangle (own keys), all queries with the first half of the keys (of an earlier
rank), or the second half of the queries with all keys (of a later one); of chunks all queries with all keys of each before
them; of packed sequences these of each. With documents or a window queries are taken in blocks, each with the keys from its
first visible to its last.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.token_places import token_places
from meshwright.specs.sequence.packed_part import PackedPart
from meshwright.specs.sequence.sequence_part import OwnTokens

MASKED_ROWS = 128  # queries of a block under a mask: half as many again as keys are then computed for nothing, at the edges
Integers = npt.NDArray[np.int64]


class Tile(NamedTuple):
    """Queries `rows` and keys `keys` by their order here. `is_causal`: the i-th row sees the keys up to the i-th. `visible`:
    [B or 1, rows, keys], which are seen; None: all of them.
    """

    rows: slice
    keys: slice
    is_causal: bool = False
    visible: Tensor | None = None


def visible_tiles(
    queries: OwnTokens, keys: OwnTokens, mask: DocumentMask | None = None, is_causal: bool = True
) -> tuple[Tile, ...]:
    """The rectangles that are to be computed: together every visible pair once. `mask`: of the whole sequence, documents
    and window; None: a token sees all of its sequence before it. Without `is_causal` every token sees all, and there is none.
    """
    if not is_causal:
        return (Tile(slice(0, queries.num_tokens), slice(0, keys.num_tokens)),)
    if mask is not None:
        return tuple(_masked_tiles(queries, keys, mask))
    if isinstance(queries, PackedPart) and isinstance(keys, PackedPart):
        return _packed_tiles(queries, keys)
    return _causal_tiles(queries, keys)


def _places(part: OwnTokens) -> Integers:
    return np.concatenate([np.arange(run.start, run.stop, run.step) for run in part.runs])


@lru_cache(maxsize=64)
def _packed_tiles(queries: PackedPart, keys: PackedPart) -> tuple[Tile, ...]:
    """Of two ranks of one group: the queries of a sequence see no key of another."""
    found = []
    for (first, own), (_, others) in zip(queries.sequences, keys.sequences, strict=True):
        for rows, seen, is_causal, _ in _causal_tiles(own, others):
            found.append(Tile(_behind(rows, first), _behind(seen, first), is_causal))
    return tuple(found)


def _behind(run: slice, first: int) -> slice:
    return slice(run.start + first, run.stop + first)


@lru_cache(maxsize=256)
def _causal_tiles(queries: OwnTokens, keys: OwnTokens) -> tuple[Tile, ...]:
    counts = np.searchsorted(_places(keys), _places(queries), side="right")
    steps, low, found = np.diff(counts), 0, []
    while low < len(counts):
        rise = int(steps[low]) if low < len(steps) else 0
        changes = np.flatnonzero(steps[low:] != rise) if rise in (0, 1) else np.zeros(1, np.int64)
        high = low + int(changes[0]) + 1 if len(changes) else len(counts)
        found += _run_tiles(slice(low, high), int(counts[low]), rise == 1)
        low = high
    return tuple(found)


def _run_tiles(rows: slice, num_keys: int, is_rising: bool) -> list[Tile]:
    """Of rows whose first one sees so many keys, and each other one as many, or one more than the one before it."""
    if not is_rising:
        return [Tile(rows, slice(0, num_keys))] if num_keys else []
    if not num_keys:  # of a stripe's later rank: the first row sees none
        return _run_tiles(slice(rows.start + 1, rows.stop), 1, is_rising=True)
    first = num_keys - 1
    before = [Tile(rows, slice(0, first))] if first else []
    return [*before, Tile(rows, slice(first, first + rows.stop - rows.start), is_causal=True)]


def _masked_tiles(queries: OwnTokens, keys: OwnTokens, mask: DocumentMask) -> Iterator[Tile]:
    device = mask.starts_BS.device
    key_places, query_places = _places(keys), _places(queries)
    starts_Bs = mask.starts_BS[:, token_places(queries, device)]
    least, most = starts_Bs.amin(0).cpu().numpy(), starts_Bs.amax(0).cpu().numpy()
    for rows in _blocks(queries):
        first = int(np.searchsorted(key_places, least[rows.start]))  # starts rise along a sequence
        last = int(np.searchsorted(key_places, query_places[rows.stop - 1], side="right"))
        if first >= last:
            continue
        seen = slice(first, last)
        if key_places[last - 1] <= query_places[rows.start] and most[rows.stop - 1] <= key_places[first]:
            yield Tile(rows, seen)
            continue
        places_m = token_places(keys, device)[seen]
        is_own = places_m >= starts_Bs[:, rows, None]
        visible = is_own & (places_m <= token_places(queries, device)[rows, None])
        if bool(visible.any()):
            yield Tile(rows, seen, visible=visible)


def _blocks(queries: OwnTokens) -> Iterator[slice]:
    """Rows of neighbouring tokens, at most MASKED_ROWS of them."""
    first = 0
    for run in queries.runs:
        for low in range(0, len(run), MASKED_ROWS):
            yield slice(first + low, first + min(low + MASKED_ROWS, len(run)))
        first += len(run)
