"""Every schedule with dropout, split and recomputed, on gloo in float64: one process of plain torch with the same masks.

The oracle has none of our operations: hooks on plain modules multiply what they return by the masks, torch.autograd does
the rest.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from torch import Tensor, nn

from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.ops.randomness import SampleKeys, keep_mask
from meshwright.executor.training.training_job import RandomTokens
from meshwright.ir.judge.verify import verify
from meshwright.schedules import registered
from tests.covering import covered
from tests.training_case import (
    MODEL,
    SEQUENCE,
    SGD,
    Case,
    Reference,
    cases,
    largest_difference,
    program_of,
    torch_optimizer,
    training_of,
)

ITERATIONS = 2
TOLERANCE = 1e-10  # DESIGN, tolerances: float64
PROBABILITY = 0.3
USES = {"attention_output": "attention", "down": "mlp"}  # what is dropped: module -> name of its draws
# Draws know neither stage nor microbatch, so one size shows it; a recompute has to draw again what the forward drew.
CASES = [case for case in cases(sorted(registered()), ((2, 4),)) if case.variant != "plain"]


@pytest.mark.parametrize(
    "case",
    covered(CASES, [{"schedule": case.schedule, "variant": case.variant} for case in CASES], 1),
    ids=lambda c: f"{c.schedule}-{c.variant}",
)
def test_one_process_finds_the_same(case: Case, gloo_pool: Pool) -> None:
    program = program_of(case)
    verify(program)
    training = training_of(case, dropout=PROBABILITY)
    result = run_training(program, training, ITERATIONS, pool=gloo_pool, dtype="float64")
    expected = reference(case.global_batch)
    assert result.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < TOLERANCE
    assert largest_difference(result.parameters, expected.parameters) < TOLERANCE


def test_the_masks_matter() -> None:
    """Without them the oracle would find another loss, so the tests above can fail."""
    assert abs(reference(4).losses[0] - reference(4, 0.0).losses[0]) > 1e-6


@lru_cache
def reference(global_batch: int, probability: float = PROBABILITY) -> Reference:
    """Loss, gradients and parameters of one process in float64, the whole batch at once."""
    plain = PlainDecoder(MODEL).double()
    plain.load_state_dict(build_model(MODEL, torch.float64).state_dict())
    _use_tables_of_float64(plain)
    current: dict[str, SampleKeys] = {}
    for layer, block in plain.layers.items():
        for name, use in USES.items():
            hook = partial(_dropped, current, int(layer), use, probability)
            block.get_submodule(name).register_forward_hook(hook)
    optimizer = torch_optimizer(plain, SGD)
    losses, gradients = [], []
    for step in range(ITERATIONS):
        samples = range(global_batch)
        current["keys"] = SampleKeys(0, step, tuple(samples))
        tokens_BS, targets_BS = RandomTokens(MODEL.vocabulary_size).batch(0, step, samples, SEQUENCE)
        optimizer.zero_grad()
        loss = F.cross_entropy(plain(tokens_BS).flatten(0, 1), targets_BS.flatten())
        torch.autograd.backward(loss)
        losses.append(loss.item())
        gradients.append({n: p.grad.clone() for n, p in plain.named_parameters() if p.grad is not None})
        optimizer.step()
    parameters = {name: p.detach().clone() for name, p in plain.named_parameters()}
    return Reference(tuple(losses), (), tuple(gradients), parameters)


def _dropped(
    current: dict[str, SampleKeys],
    layer: int,
    use: str,
    probability: float,
    module: nn.Module,
    inputs: Any,
    out_BSE: Tensor,
) -> Tensor:
    """What a module returned, with the numbers that a sample loses in this layer at zero, the others scaled."""
    if not probability:
        return out_BSE
    mask_BSE = keep_mask(out_BSE, probability, current["keys"].of(layer, use))
    return out_BSE * mask_BSE / (1 - probability)


def _use_tables_of_float64(plain: PlainDecoder) -> None:
    """Angles of positions, made in the default dtype, again in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        again = PlainDecoder(plain.model)
    finally:
        torch.set_default_dtype(before)
    for name, table in again.named_buffers():
        setattr(plain, name, table)
