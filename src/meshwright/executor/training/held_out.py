"""What a training reached: the whole model from its parameters, and its loss on held-out text.

Shapes: B samples, S tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from meshwright.executor.data.packing import documents_of, loss_targets
from meshwright.executor.models.decoder import DecoderStage, build_model
from meshwright.executor.models.one_process import one_thread
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET, token_cross_entropy
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec

BATCH = 8  # sequences of one forward: enough to fill the cores, little memory


def trained_model(model: ModelSpec, parameters: Mapping[str, Tensor]) -> DecoderStage:
    """The whole model on this process with these parameters, by name in the whole model.

    Raises ExecutionError where one is missing.
    """
    stage = build_model(model)
    slots = stage.global_parameters()
    missing = sorted(slots.keys() - parameters.keys())
    if missing:
        raise ExecutionError(
            f"the training returned no {', '.join(missing[:3])}", next="let it return parameters"
        )
    with torch.no_grad():
        for name, slot in slots.items():
            slot.copy_(parameters[name])
    return stage.eval()


class HeldOut(Protocol):
    """Text that no training sees: a `Corpus`, or what `data_source.opened` gives for a folder of token shards."""

    def held_out_batches(
        self, num_sequences: int, sequence_length: int, batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """tokens_BS and targets_BS of ``num_sequences`` sequences, always the same ones."""


def held_out_loss(stage: DecoderStage, corpus: HeldOut, num_sequences: int, sequence_length: int) -> float:
    """Mean nats per token over sequences spread evenly over the held-out text, always the same ones."""
    total, num_targets = 0.0, 0
    with one_thread(), torch.inference_mode():
        for tokens_BS, targets_BS in corpus.held_out_batches(num_sequences, sequence_length, BATCH):
            logits_BSV = stage(tokens_BS, documents_BS=documents_of(targets_BS))
            total += float(token_cross_entropy(logits_BSV, loss_targets(targets_BS), 1.0))
            num_targets += int((loss_targets(targets_BS) != IGNORED_TARGET).sum())
    return total / max(1, num_targets)
