"""Bytes sampled from a whole model on one process, one token after another.

Shapes: S tokens of the window, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.specs.error import ExecutionError

BYTE_VALUES = 256


def sample_bytes(
    stage: DecoderStage,
    prompt: bytes,
    num_bytes: int,
    window: int,
    temperature: float = 0.8,
    top_k: int | None = 40,
    seed: int = 0,
) -> bytes:
    """`num_bytes` that follow `prompt` (which is not part of the result).

    The model sees the last `window` bytes, at most; use the sequence length it was trained on. Temperature
    0 takes the most probable byte. Position n is drawn with key (seed, n). There is no cache of keys and
    values: every byte is a forward of the window. Raises ExecutionError for a stage that is not a whole
    model of bytes, an empty prompt, or settings out of range.
    """
    _check(stage, prompt, window, temperature, top_k)
    tokens = list(prompt)
    device = next(stage.parameters()).device
    with torch.inference_mode():
        for position in range(num_bytes):
            recent_BS = torch.tensor([tokens[-window:]], device=device)
            logits_V = stage(recent_BS)[0, -1, :BYTE_VALUES].to("cpu", torch.float64)
            tokens.append(_draw(logits_V, temperature, top_k, random_key(seed, "sampling", position)))
    return bytes(tokens[len(prompt) :])


def _draw(logits_V: Tensor, temperature: float, top_k: int | None, key: int) -> int:
    if temperature == 0.0:
        return int(logits_V.argmax())
    if top_k is not None and top_k < logits_V.numel():
        floor = logits_V.topk(top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < floor, -torch.inf)
    probabilities_V = torch.softmax(logits_V / temperature, -1)
    return int(torch.multinomial(probabilities_V, 1, generator=keyed_generator(key)))


def _check(stage: DecoderStage, prompt: bytes, window: int, temperature: float, top_k: int | None) -> None:
    if not (stage.has_embedding and stage.has_head) or stage.model.vocabulary_size < BYTE_VALUES:
        raise ExecutionError(
            "this stage cannot sample bytes",
            allowed=f"a whole model with a vocabulary of {BYTE_VALUES} or more",
        )
    if not prompt:
        raise ExecutionError("the prompt is empty", allowed="at least one byte")
    if window < 1 or temperature < 0.0 or (top_k is not None and top_k < 1):
        raise ExecutionError(
            f"window {window}, temperature {temperature}, top_k {top_k}",
            allowed="window from 1, temperature from 0, top_k from 1 or None",
        )
