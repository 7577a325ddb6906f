"""What packed documents are compared with: plain modules that are given one document at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from torch import Tensor

from meshwright.executor.data.packing import PackedSequences, SampleCount
from meshwright.executor.data.token_shard import TokenShards
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.source import Source
from meshwright.stage.mesh import device_order
from tests.planned_case import AFTER_ADAMW, BATCH, GRADIENTS, MODELS, Planned
from tests.training_case import (
    ADAMW,
    SEQUENCE,
    Reference,
    as_long_as,
    largest_difference,
    torch_optimizer,
)


def document_losses(model: Callable[[Tensor], Tensor], tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
    """Sum of all tokens' losses, in nats: sequences are cut behind every token without a target, each part is run alone; what
    is not to be learned is no end."""
    total = torch.zeros((), dtype=torch.float64)
    for tokens_S, targets_S in zip(tokens_BS, targets_BS):
        ends = [*(torch.nonzero(targets_S == IGNORED_TARGET)[:, 0] + 1).tolist(), len(tokens_S)]
        low = 0
        for high in dict.fromkeys(ends):
            logits_TV = model(tokens_S[None, low:high])[0]
            counted = targets_S[low:high] >= 0
            total = total + F.cross_entropy(logits_TV[counted], targets_S[low:high][counted], reduction="sum")
            low = high
    return total


def train_document_by_document(
    model: ModelSpec,
    packed: PackedSequences,
    num_samples: int,
    steps: range,
    length: int,
    optimizer: OptimizerConfig = ADAMW,
    drawn: torch.dtype = torch.float64,
) -> Reference:
    """One process of plain torch, float64. ``drawn``: the format to which first values are rounded."""
    first = build_model(model, drawn).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        plain = PlainDecoder(as_long_as(model, length))
    finally:
        torch.set_default_dtype(torch.float32)
    plain.load_state_dict(first)
    chosen = torch_optimizer(plain, optimizer)
    losses, norms, gradients = [], [], []
    for step in steps:
        tokens_BS, targets_BS = packed.batch(0, step, range(num_samples), length)
        chosen.zero_grad()
        loss = document_losses(plain, tokens_BS, targets_BS) / (targets_BS >= 0).sum()
        torch.autograd.backward(loss)
        found = {name: p.grad.clone() for name, p in plain.named_parameters() if p.grad is not None}
        losses.append(loss.item())
        norms.append(torch.stack([g.norm() for g in found.values()]).norm().item())
        gradients.append(found)
        chosen.step()
    parameters = {name: p.detach().clone() for name, p in plain.named_parameters()}
    return Reference(tuple(losses), tuple(norms), tuple(gradients), parameters)


def check_against_documents_alone(case: Planned, shards: TokenShards, pool: Pool, iterations: int) -> None:
    """Losses, gradient norms and parameters of a job on packed shards are those of one document at a time."""
    job, plan = case.job(iterations)
    assert job.training is not None
    training = replace(job.training, source=Source(str(shards.folder)))
    result = pool.run(replace(job, training=training), places=device_order(plan))
    packed = PackedSequences(shards, SampleCount(BATCH))
    alone = train_document_by_document(MODELS[case.model], packed, BATCH, range(iterations), SEQUENCE)
    assert result.losses[0] == pytest.approx(alone.losses[0], abs=GRADIENTS)
    assert result.losses == pytest.approx(alone.losses, rel=AFTER_ADAMW)
    assert [it.gradient_norm for it in result.iterations] == pytest.approx(alone.norms, rel=AFTER_ADAMW)
    assert largest_difference(result.parameters, alone.parameters) < AFTER_ADAMW
