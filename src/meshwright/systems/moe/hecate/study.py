"""Hecate here: four processes with copies drawn anew in every step, beside plain expert parallelism and one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from meshwright.executor import run_program
from meshwright.executor.job.pool import Pool
from meshwright.executor.rank.handler import ValueName
from meshwright.systems.moe.hecate.mechanism import Move, Owners, moves_of, owned
from meshwright.systems.moe.hecate.ops import LayerShape, adam, batch_of, expert_of, first_expert
from meshwright.systems.moe.hecate.rows import GRADIENT, LOSS, OWNED, training_steps

RANKS, STEPS, FLOAT64_BYTES = 4, 5, 8
SHAPE = LayerShape()
OWNERS: Owners = np.repeat(np.arange(RANKS), SHAPE.experts // RANKS)


class TrainedExperts(NamedTuple):
    """By step: losses, gradients [X, numbers]; parameters and moments [X, 3, numbers] behind the last; bytes that spAG and
    spRS sent."""

    losses: list[float]
    gradients: list[Tensor]
    states: Tensor
    gathered_bytes: float
    reduced_bytes: float


def random_moves(seed: int, steps: int = STEPS) -> list[list[Move]]:
    """Every expert is on every device with probability one half, besides its owner's."""
    draw = np.random.default_rng(seed)
    copies = [draw.random((SHAPE.experts, RANKS)) < 0.5 for _ in range(steps)]
    return [moves_of(OWNERS, each | owned(OWNERS, RANKS)) for each in copies]


def on_processes(moves_of_steps: Sequence[Sequence[Move]], pool: Pool | None = None) -> TrainedExperts:
    """TrainedExperts by four ranks."""
    options = {
        "shape": asdict(SHAPE), "ranks": RANKS, "owners": OWNERS.tolist(),
        "steps": [[list(move) for move in moves] for moves in moves_of_steps],
    }  # fmt: skip
    result = run_program(
        training_steps(RANKS, moves_of_steps), keep=(OWNED.name, LOSS.name, GRADIENT.name), options=options,
        dtype="float64", pool=pool,
    )  # fmt: skip
    steps = range(len(moves_of_steps))

    def of(kind: str, part: int) -> list[Tensor]:
        return [rank[ValueName(kind, part=part)] for rank in result.values]

    sent = [
        sum(rank.get(name, 0.0) for rank in result.sent_bytes)
        for name in ("SEND_EXPERT", "SEND_EXPERT_GRADIENT")
    ]
    return TrainedExperts(
        [float(torch.stack(of(LOSS.name, step)).sum()) for step in steps],
        [torch.cat(of(GRADIENT.name, 2 * step + 1)) for step in steps],
        torch.cat(of(OWNED.name, len(moves_of_steps))),
        *sent,
    )


def alone(steps: int = STEPS) -> TrainedExperts:
    """TrainedExperts by this process, every token through every expert by autograd, weighed by its gate or by zero."""
    states = torch.stack([torch.stack([first_expert(SHAPE, x), *torch.zeros(2, SHAPE.expert_numbers, dtype=torch.float64)])
                          for x in range(SHAPE.experts)])  # fmt: skip
    losses, gradients = [], []
    for step in range(steps):
        values = states[:, 0].clone().requires_grad_()
        loss = torch.zeros((), dtype=torch.float64)
        for rank in range(RANKS):
            batch = batch_of(SHAPE, step, rank)
            gates_TX = torch.zeros(SHAPE.tokens, SHAPE.experts, dtype=torch.float64)
            gates_TX.scatter_(1, batch.experts_TK, batch.gates_TK)
            outputs = torch.stack([expert_of(SHAPE, value, batch.x_TE) for value in values], 1)
            y_TE = (outputs * gates_TX[..., None]).sum(1)
            loss = loss + 0.5 * ((y_TE - batch.target_TE) ** 2).sum() / (SHAPE.tokens * RANKS)
        torch.autograd.backward(loss)
        assert values.grad is not None
        states = torch.stack([adam(s, g, step + 1) for s, g in zip(states, values.grad, strict=True)])
        losses.append(float(loss.detach()))
        gradients.append(values.grad)
    return TrainedExperts(losses, gradients, states, 0.0, 0.0)


def difference(one: TrainedExperts, other: TrainedExperts) -> float:
    """Largest of any loss, gradient, parameter and moment."""
    pairs = [
        (torch.tensor(one.losses), torch.tensor(other.losses)),
        *zip(one.gradients, other.gradients, strict=True),
        (one.states, other.states),
    ]
    return max(float((ours - theirs).abs().max()) for ours, theirs in pairs)


def trained_difference(seed: int, pool: Pool | None = None) -> float:
    """Of five steps with random copies, to one process."""
    return difference(on_processes(random_moves(seed), pool), alone())


def bytes_over_formula(seed: int, pool: Pool | None = None) -> float:
    """What spAG and spRS sent, over 2 x copies x an expert's bytes."""
    moves = random_moves(seed)
    found = on_processes(moves, pool)
    expected = sum(len(each) for each in moves) * SHAPE.expert_numbers * FLOAT64_BYTES
    return (found.gathered_bytes + found.reduced_bytes) / (2 * expected)
