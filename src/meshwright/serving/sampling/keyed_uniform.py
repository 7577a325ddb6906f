"""Random numbers by key: the one of token t of output i of a seed, whoever else is in the batch.

They are SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"): a step of a Weyl sequence,
then a mixture that is a bijection of 64 bits. (seed, i) chooses where a sequence starts, t how far along it is.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

WEYL_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, odd
# Shifts and multipliers of the mixture (variant 13 of Stafford), as the paper has them.
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
UNUSED_BITS = np.uint64(11)  # a float64 below 1 has 53 of 64
UNIT = 2.0**-53


def stream_key(seed: int, output: int, purpose: str = "") -> int:
    """Where the numbers of an output begin: 64 bits of a hash of its request's seed, its number, and what they are for."""
    text = f"{seed} {output} {purpose}".rstrip()
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def keyed_uniforms(keys: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """``[R]``, within [0, 1): of each key the number at a position, from 0."""
    mixed = keys + (positions + np.uint64(1)) * WEYL_STEP
    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
        mixed = (mixed ^ (mixed >> shift)) * multiplier
    mixed ^= mixed >> SHIFTS[-1]
    return (mixed >> UNUSED_BITS).astype(np.float64) * UNIT
