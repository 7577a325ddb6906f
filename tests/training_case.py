"""A small training job, and the same in one process of plain torch: whole model, whole batch, torch.autograd.

Shapes: B samples, S tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from torch import Tensor

from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.encoder_decoder import EncoderDecoderStage, build_encoder_decoder_stage
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.training_job import RANDOM, RandomTokens, TrainingConfig
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Microbatch, ParameterGroup
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.specs.model.layers import split_layers
from meshwright.specs.model.model import ModelSpec
from tests.encoder_case import PlainEncoderDecoder

SEQUENCE = 8
SGD = OptimizerConfig("sgd", learning_rate=0.1, weight_decay=0.0, clip_norm=None)
ADAMW = OptimizerConfig("adamw", learning_rate=1e-2, weight_decay=0.1, clip_norm=None)
MODEL = ModelSpec.decoder(9, 16, 2, num_kv_heads=1, vocabulary_size=32, max_sequence_length=SEQUENCE)
TIED = replace(MODEL, has_tied_embeddings=True)


@dataclass(frozen=True)
class Case:
    """One layout of the job. ``variant``: plain, recompute, split, or split and recompute."""

    schedule: str
    num_devices: int
    num_microbatches: int
    variant: str = "plain"
    num_replicas: int = 1
    model: ModelSpec = MODEL
    optimizer: OptimizerConfig = SGD
    samples: tuple[int, ...] = ()  # of the microbatches; empty: one each

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of every microbatch of a replica."""
        return self.samples or (1,) * self.num_microbatches

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return self.num_devices * registered()[self.schedule].num_chunks

    @property
    def global_batch(self) -> int:
        """Samples of a step, over all replicas."""
        return sum(self.counts) * self.num_replicas


def program_of(case: Case) -> Program:
    """The program of one training step, lists over pp, dp collapsed."""
    orders = registered()[case.schedule].orders(case.num_devices, case.num_microbatches)
    counts = case.counts
    program = program_of_orders(
        orders,
        microbatches=[Microbatch(n * SEQUENCE, n / sum(counts)) for n in counts],
        groups=groups_of(case),
        collapsed=[Axis("dp", case.num_replicas, False)],
    )
    if "split" in case.variant:
        program = SplitBackward()(program)
    if "recompute" in case.variant:
        program = Recompute()(program)
    return OptimizerStep()(Transfers()(ReduceGradients()(program)))


def groups_of(case: Case) -> tuple[ParameterGroup, ...]:
    """One group a stage; a tied table is a group that the first and the last stage use."""
    groups = [ParameterGroup(f"stage{s}", (s,), 0, ("dp",)) for s in range(case.num_stages)]
    if case.model.has_tied_embeddings and case.num_stages > 1:
        groups.append(ParameterGroup("tied", (0, case.num_stages - 1), 0, ("dp",)))
    return tuple(groups)


def training_of(case: Case, **fields: object) -> TrainingConfig:
    """The job's training: every gradient of every iteration comes back."""
    return TrainingConfig(
        case.model,
        split_layers(case.model.num_layers, case.num_stages),
        SEQUENCE,
        case.optimizer,
        **({"source": RANDOM, "records_gradients": True} | fields),  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Reference:
    """What one process finds."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    gradients: tuple[dict[str, Tensor], ...]
    parameters: dict[str, Tensor]


def build_whole_encoder_decoder(model: ModelSpec, dtype: torch.dtype) -> EncoderDecoderStage:
    """The whole model as one stage."""
    return build_encoder_decoder_stage(model, range(model.num_layers), True, True, dtype)


def as_long_as(model: ModelSpec, length: int) -> ModelSpec:
    """The model with positions for so many tokens."""
    return replace(model, max_sequence_length=max(length, model.max_sequence_length))


@lru_cache(maxsize=32)
def reference(
    model: ModelSpec,
    optimizer: OptimizerConfig,
    global_batch: int,
    iterations: int,
    dtype: torch.dtype = torch.float64,
    drawn: torch.dtype | None = None,
    length: int = SEQUENCE,
) -> Reference:
    """The mean loss over all tokens of the batch, its gradients by torch.autograd, and torch's own optimizer. ``drawn``: the
    format to which first values are rounded, where it is another than `dtype`."""
    build = build_whole_encoder_decoder if model.num_encoder_layers else build_model
    first = build(model, drawn or dtype).state_dict()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # the plain model makes its tables in the default dtype
    try:
        plain = (
            PlainEncoderDecoder(model)
            if model.num_encoder_layers
            else PlainDecoder(as_long_as(model, length))
        )
        plain.load_state_dict(first)
    finally:
        torch.set_default_dtype(before)
    chosen = torch_optimizer(plain, optimizer)
    losses, norms, gradients = [], [], []
    for step in range(iterations):
        tokens_BS, targets_BS = RandomTokens(model.vocabulary_size).batch(
            0, step, range(global_batch), length
        )
        chosen.zero_grad()
        logits = plain(tokens_BS)
        loss = F.cross_entropy(logits.flatten(0, 1), targets_BS[:, -logits.shape[1] :].flatten())
        loss.backward()
        found = {name: p.grad.clone() for name, p in plain.named_parameters() if p.grad is not None}
        losses.append(loss.item())
        norms.append(torch.stack([g.norm() for g in found.values()]).norm().item())
        gradients.append(found)
        if optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), optimizer.clip_norm)
        chosen.step()
    parameters = {name: p.detach().clone() for name, p in plain.named_parameters()}
    return Reference(tuple(losses), tuple(norms), tuple(gradients), parameters)


def torch_optimizer(plain: torch.nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """SGD or AdamW, decay on matrices only."""
    is_matrix = {p: p.dim() >= 2 and not name.endswith(".bias") for name, p in plain.named_parameters()}
    matrices, vectors = ([p for p, found in is_matrix.items() if found is wanted] for wanted in (True, False))
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate)
    if config.name.endswith(":Lion"):
        return PlainLion(groups, lr=config.learning_rate)
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=config.rule.betas, eps=config.rule.epsilon
    )


class PlainLion(torch.optim.Optimizer):
    """Chen et al. 2023, arXiv 2302.06675, algorithm 2, as it is printed there."""

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].get("m", torch.zeros_like(p))
                update = torch.sign(0.9 * m + 0.1 * p.grad)
                self.state[p]["m"] = 0.99 * m + 0.01 * p.grad
                p -= group["lr"] * (update + group["weight_decay"] * p)


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Over all tensors, relative to the largest number of each; the names must be the same."""
    assert set(ours) == set(theirs), sorted(set(ours) ^ set(theirs))
    return max(
        float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max().clamp(min=1e-30)) for n in theirs
    )


def cases(schedules: Sequence[str], sizes: Sequence[tuple[int, int]]) -> list[Case]:
    """Every schedule in every variant it has (one that splits by itself has no unsplit ones) at every size."""
    found = []
    for schedule in schedules:
        by_itself = registered()[schedule].splits_backward
        variants = ("plain", "recompute") if by_itself else ("plain", "recompute", "split", "split recompute")
        found += [Case(schedule, p, m, variant) for variant in variants for p, m in sizes]
    return found
