"""Randomness by key: (seed, step, sample, layer, use), never by rank, so every partition draws the same.

Shapes: B samples, S tokens, D width.

A generator is made from its key and thrown away. What a sample is given in a layer depends on neither the
microbatch it is in, nor the rank that holds it, nor what was drawn before; a recompute draws it again.
Keys agree between machines; numbers drawn agree between devices of one kind (CPU, CUDA).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.ops.token_places import own_tokens
from meshwright.specs.error import ExecutionError
from meshwright.specs.sequence.sequence_part import OwnTokens


def random_key(*parts: int | str) -> int:
    """A 64-bit key of the parts, in order; different parts give unrelated keys (BLAKE2)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def keyed_generator(key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator whose numbers are a function of `key`."""
    return torch.Generator(device=device).manual_seed(key)


@dataclass(frozen=True)
class SampleKeys:
    """Names the draws of one microbatch: its samples are numbered in the global batch of step `step`. `tokens`: which of a
    sequence are here; None: all of them."""

    seed: int
    step: int
    samples: tuple[int, ...]
    tokens: OwnTokens | None = None

    def of(self, layer: int, use: str = "") -> tuple[int, ...]:
        """One key a sample for `use` (such as "attention") in `layer`, counted in the whole model."""
        return tuple(random_key(self.seed, self.step, sample, layer, use) for sample in self.samples)


def dropout(
    x_BSD: Tensor,
    probability: float,
    keys: Sequence[int],
    part: tuple[int, int] = (0, 1),
    tokens: OwnTokens | None = None,
) -> Tensor:
    """Zero each number with `probability` and scale the rest by 1 / (1 - probability); one key a sample.

    `tokens`: those of a context-parallel rank or of a chunk; `part`: (number, of how many) equal parts of these, or of the
    whole sequence, that x is. The whole sequence's numbers are drawn, and these kept.

    Raises ExecutionError where the keys are not as many as the samples, or the probability is not in [0, 1).
    """
    if not 0.0 <= probability < 1.0:
        raise ExecutionError(f"dropout probability is {probability}", allowed="0 <= probability < 1")
    if len(keys) != x_BSD.shape[0]:
        raise ExecutionError(
            f"dropout was given {len(keys)} keys for {x_BSD.shape[0]} samples",
            allowed="one key a sample",
            next="make them with SampleKeys(seed, step, samples).of(layer, use)",
        )
    if probability == 0.0:
        return x_BSD
    return _Dropout.apply(x_BSD, keep_mask(x_BSD, probability, keys, part, tokens), 1.0 / (1.0 - probability))  # type: ignore[no-untyped-call, no-any-return]


def keep_mask(
    x_BSD: Tensor,
    probability: float,
    keys: Sequence[int],
    part: tuple[int, int] = (0, 1),
    tokens: OwnTokens | None = None,
) -> Tensor:
    """True where a number is kept; drawn in float32 whatever the dtype of x, so dtypes agree."""
    number, num_parts = part
    mask_BSD = torch.empty(x_BSD.shape, dtype=torch.bool, device=x_BSD.device)
    num_tokens = x_BSD.shape[1] * num_parts if tokens is None else tokens.sequence_length
    whole_SD = (num_tokens, *x_BSD.shape[2:])
    for mask_SD, key in zip(mask_BSD, keys, strict=True):
        draws_SD = torch.rand(whole_SD, generator=keyed_generator(key, x_BSD.device), device=x_BSD.device)
        own_SD = own_tokens(draws_SD, tokens, 0).chunk(num_parts)[number]
        torch.ge(own_SD, probability, out=mask_SD)
    return mask_BSD


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, mask_BSD: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask_BSD)
        ctx.scale = scale
        return torch.mul(x_BSD, mask_BSD).mul_(scale)

    @staticmethod
    def backward(ctx: Any, dy_BSD: Tensor) -> tuple[Tensor, None, None]:
        (mask_BSD,) = ctx.saved_tensors
        return torch.mul(dy_BSD, mask_BSD).mul_(ctx.scale), None, None
