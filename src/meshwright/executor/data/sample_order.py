"""The order of samples: of every epoch a permutation that is computed, not stored, so it may have any length.

A permutation of 0 .. n - 1 is a Feistel network on pairs of half words (Luby and Rackoff, "How to Construct Pseudorandom
Permutations from Pseudorandom Functions", 1988): swap the halves, and add to one a keyed hash of the other, in rounds. Its
domain is the least power of four that holds n; what falls outside is permuted again until it is inside (Black and Rogaway,
"Ciphers with Arbitrary Finite Domains", 2002), three more times on average at most.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.specs.error import ExecutionError

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

NUM_ROUNDS = 8  # four make a permutation that looks random for long words; ours may have two bits
# Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014: the last steps of SplitMix64.
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = np.uint64(31)


@dataclass(frozen=True)
class SampleOrder:
    """Which sequence the sample number m of a job is: a function of (seed, m) and of nothing else.

    Samples are counted through all epochs: epoch m // n, and in it the place m % n of that epoch's permutation. So the
    number of samples consumed is all that a job needs to go on, whatever its batch and its layout were and are.
    """

    num_sequences: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_sequences < 1:
            raise ExecutionError(f"{self.num_sequences} sequences have no order", allowed="one or more")

    def sequences(self, samples: Integers) -> Integers:
        """The sequences of these samples."""
        epochs, places = np.divmod(np.asarray(samples, np.int64), self.num_sequences)
        chosen = np.empty_like(places)
        for epoch in np.unique(epochs):
            own = epochs == epoch
            chosen[own] = permuted(places[own], self.num_sequences, f"{self.seed}/{epoch}")
        return chosen


def permuted(places: Integers, length: int, key: str) -> Integers:
    """Where the permutation of 0 .. length - 1 named by `key` takes these places."""
    half_bits = max(1, -(-(length - 1).bit_length() // 2))
    keys = [
        np.frombuffer(hashlib.blake2b(f"{key}/{number}".encode(), digest_size=8).digest(), "<u8")
        for number in range(NUM_ROUNDS)
    ]
    words = _network(places.astype(np.uint64), half_bits, keys)
    while (outside := words >= np.uint64(length)).any():
        words[outside] = _network(words[outside], half_bits, keys)
    return words.astype(np.int64)


def _network(words: Words, half_bits: int, keys: list[Words]) -> Words:
    """All rounds on words of 2 half_bits bits; a bijection whatever the hash."""
    shift, low_bits = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> shift, words & low_bits
    for key in keys:
        left, right = right, left ^ (_hashed(right + key) & low_bits)
    return (left << shift) | right


def _hashed(words: Words) -> Words:
    """SplitMix64's mixing; products wrap at 64 bits."""
    for shift, factor in _MIX:
        words = (words ^ (words >> shift)) * factor
    return words ^ (words >> _LAST_SHIFT)
