"""Tutel here: a small vision model on four processes, its experts divided by another r in each step, beside one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.executor import run_program
from meshwright.executor.job.pool import Pool
from meshwright.executor.rank.handler import ValueName
from meshwright.systems.moe.tutel.mechanism import shared_degrees
from meshwright.systems.moe.tutel.ops import (
    RATE,
    ExpertSharing,
    VisionShape,
    dense_of,
    embedded,
    first_dense,
    first_part,
    gates_of,
    image_loss,
    images_of,
    part_of,
)
from meshwright.systems.moe.tutel.vision_rows import (
    DENSE,
    DENSE_GRADIENT,
    GATHER_PARTS,
    GRADIENT,
    LOSS,
    OWNED,
    REDUCE_PARTS,
    RETURN,
    RETURN_GRADIENTS,
    SEND,
    SEND_GRADIENTS,
    SUM_DENSE,
    vision_steps,
)

FLOAT64_BYTES, STEPS = 8, 6


class TrainedVision(NamedTuple):
    """By step: losses, gradients of parts [W, numbers] and of dense parameters; both behind the last step; bytes by name."""

    losses: list[float]
    gradients: list[Tensor]
    dense_gradients: list[Tensor]
    parts: Tensor
    dense: Tensor
    sent_bytes: Mapping[str, float]


def degrees_of(shape: VisionShape) -> tuple[int, ...]:
    """Every r."""
    return shared_degrees(shape.ranks, shape.experts)


def swept(shape: VisionShape, num_steps: int = STEPS) -> tuple[int, ...]:
    """r of each step: all of them in turn."""
    degrees = degrees_of(shape)
    return tuple(degrees[step % len(degrees)] for step in range(num_steps))


def on_processes(shape: VisionShape, shared: Sequence[int], pool: Pool | None = None) -> TrainedVision:
    """By as many ranks as the shape has."""
    kept = (OWNED.name, DENSE.name, LOSS.name, GRADIENT.name, DENSE_GRADIENT.name)
    result = run_program(
        vision_steps(shape.ranks, len(shared)), keep=kept,
        options={"shape": asdict(shape), "shared": list(shared)}, dtype="float64", pool=pool,
    )  # fmt: skip
    steps, names = range(len(shared)), {name for rank in result.sent_bytes for name in rank}

    def of(kind: str, part: int) -> list[Tensor]:
        return [rank[ValueName(kind, part=part)] for rank in result.values]

    return TrainedVision(
        [float(torch.stack(of(LOSS.name, step)).sum()) for step in steps],
        [torch.stack(of(GRADIENT.name, step)) for step in steps],
        [of(DENSE_GRADIENT.name, step)[0] for step in steps],
        torch.stack(of(OWNED.name, len(shared))),
        of(DENSE.name, len(shared))[0],
        {name: sum(rank.get(name, 0.0) for rank in result.sent_bytes) for name in names},
    )


def alone(shape: VisionShape, num_steps: int) -> TrainedVision:
    """By this process: every patch through every expert by autograd, of which its own counts."""
    parts = torch.stack([first_part(shape, rank) for rank in range(shape.ranks)])
    flat, losses, gradients, dense_gradients = (
        first_dense(shape),
        list[float](),
        list[Tensor](),
        list[Tensor](),
    )
    for step in range(num_steps):
        parts, flat = parts.detach().requires_grad_(), flat.detach().requires_grad_()
        dense, loss = dense_of(shape, flat), torch.zeros((), dtype=torch.float64)
        for rank in range(shape.ranks):
            patches_TPD, classes_T = images_of(shape, step, rank)
            x_NE = embedded(patches_TPD, dense)
            gate_N, expert_N = gates_of(x_NE, dense[2])
            each = torch.stack([part_of(x_NE, part) for part in parts]).view(
                shape.experts, shape.num_parts, *x_NE.shape
            )
            own_NX = torch.nn.functional.one_hot(expert_N, shape.experts).to(x_NE.dtype)
            added_NE = torch.einsum("nx,xne->ne", own_NX, each.sum(1))
            loss = loss + image_loss(
                x_NE + gate_N[:, None] * added_NE, classes_T, dense[3], shape.images * shape.ranks
            )
        torch.autograd.backward(loss)
        assert parts.grad is not None and flat.grad is not None
        losses.append(float(loss.detach()))
        gradients.append(parts.grad)
        dense_gradients.append(flat.grad)
        parts, flat = parts - RATE * parts.grad, flat - RATE * flat.grad
    return TrainedVision(losses, gradients, dense_gradients, parts.detach(), flat.detach(), {})


def difference(one: TrainedVision, other: TrainedVision) -> float:
    """Largest of any loss, gradient and parameter."""
    pairs = [
        (torch.tensor(one.losses), torch.tensor(other.losses)),
        *zip(one.gradients, other.gradients, strict=True),
        *zip(one.dense_gradients, other.dense_gradients, strict=True),
        (one.parts, other.parts),
        (one.dense, other.dense),
    ]
    return max(float((ours - theirs).abs().max()) for ours, theirs in pairs)


def expected_bytes(shape: VisionShape, shared: int) -> dict[str, float]:
    """Of the first step, by the closed form: a part to each other who gathers it, a patch to each other who computes it."""
    division, dense = ExpertSharing(shape, shared), dense_of(shape, first_dense(shape))
    moved = 0
    for rank in range(shape.ranks):
        experts = gates_of(embedded(images_of(shape, 0, rank)[0], dense), dense[2])[1].tolist()
        moved += sum(target != rank for expert in experts for target in division.targets(rank, expert))
    parts = shape.ranks * (division.num_gathered - 1) * shape.part_numbers
    numbers = {
        **dict.fromkeys((GATHER_PARTS.name, REDUCE_PARTS.name), parts),
        SEND.name: moved * (1 + shape.hidden),
        **dict.fromkeys((RETURN.name, SEND_GRADIENTS.name, RETURN_GRADIENTS.name), moved * shape.hidden),
        SUM_DENSE.name: shape.ranks * (shape.ranks - 1) * len(first_dense(shape)),
    }
    return {name: float(each * FLOAT64_BYTES) for name, each in numbers.items()}


def vision_difference(experts: int, pool: Pool | None = None) -> float:
    """Of six steps, another r in each, to one process."""
    shape = VisionShape(experts=experts)
    return difference(on_processes(shape, swept(shape), pool), alone(shape, STEPS))


def switching_bytes(experts: int, pool: Pool | None = None) -> float:
    """What a job that changes r in each step sends of parameters and gradients beyond jobs of one step and one r each.

    How many these are does not depend on what is in them; patches go where they are routed, and are left out.
    """
    shape = VisionShape(experts=experts)
    degrees = degrees_of(shape)
    together = on_processes(shape, degrees, pool).sent_bytes
    each = [on_processes(shape, (degree,), pool).sent_bytes for degree in degrees]
    names = (GATHER_PARTS.name, REDUCE_PARTS.name, SUM_DENSE.name)
    return sum(together.get(name, 0.0) - sum(one.get(name, 0.0) for one in each) for name in names)
