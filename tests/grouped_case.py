"""A small training step whose sequences are in groups of ranks; drawn groups; for tests of their programs and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from hypothesis import strategies as st

from meshwright.executor.job.job import Job
from meshwright.executor.models.decoder import build_model
from meshwright.executor.training.tensor_layout import DTYPES, TensorLayout
from meshwright.executor.training.training_job import RANDOM, RandomTokens, TrainingConfig
from meshwright.lowering.grouped_program import grouped_program
from meshwright.lowering.sequence.group_plan import plan_of_rank
from meshwright.lowering.sharding.gradient_norm import clip_norm
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from tests.planned_case import LLAMA, MODELS
from tests.training_case import ADAMW, Reference, torch_optimizer

LONGEST = 24  # tokens of a drawn sequence
WINDOWED = {"mistral": LLAMA.changed(architecture="mistral", sliding_window=5, sliding_layers=(0, 2))}
# The groups of four ranks: (ranks, sequences) in their order.
MIXED = GroupedBatch(
    (9, 4, 6, 3), 4, (SequenceGroup((2, 0), (0,)), SequenceGroup((1,), (1, 3)), SequenceGroup((3,), (2,)))
)
WHOLE = GroupedBatch((16, 5), 4, (SequenceGroup((0, 1, 2, 3), (1, 0)),))
THREE = GroupedBatch((14, 3, 2, 1, 5), 4, (SequenceGroup((3, 0, 1), (0,)), SequenceGroup((2,), (4, 1, 2, 3))))
UNEVEN = GroupedBatch(
    (3, 11, 2, 7, 4, 9, 1), 4,
    (
        SequenceGroup((0,), (0,)), SequenceGroup((1, 0), (1,)), SequenceGroup((0,), (2, 6)),
        SequenceGroup((3, 2, 1, 0), (3,)), SequenceGroup((2,), (4,)), SequenceGroup((1, 3), (5,)),
    ),
)  # fmt: skip
IDLE = GroupedBatch((6, 3), 4, (SequenceGroup((0, 2), (0,)), SequenceGroup((0,), (1,))))
CASES = {"2, 1, 1": MIXED, "4": WHOLE, "3, 1": THREE, "uneven": UNEVEN, "idle": IDLE}


def grouped_plan(model: str = "llama", num_ranks: int = 4, **choices: Any) -> Plan:
    """A plan for so many ranks; what it says of its batch is left to the groups."""
    tp = choices.get("tp", 1)
    given = {"dtype": "float64", "dp": num_ranks, **choices}
    spec = replace((MODELS | WINDOWED)[model], max_sequence_length=LONGEST)
    return Plan.of(spec, Cluster.detect(num_ranks * tp), Workload(num_ranks, 8), **given)


@st.composite
def drawn_batches(draw: st.DrawFn, num_ranks: int = 4, most: int = 6) -> GroupedBatch:
    """Uneven sequences in any groups: any set of ranks in any order, each as often as it happens."""
    lengths = draw(st.lists(st.integers(1, LONGEST), min_size=1, max_size=most))
    left = draw(st.permutations(range(len(lengths))))
    groups = []
    while left:
        ranks = draw(st.permutations(range(num_ranks)))[: draw(st.integers(1, num_ranks))]
        taken = draw(st.integers(1, len(left)))
        groups.append(SequenceGroup(tuple(ranks), tuple(left[:taken])))
        left = left[taken:]
    return GroupedBatch(tuple(lengths), num_ranks, tuple(groups))


def grouped_job(plan: Plan, groups: GroupedBatch, iterations: int, **fields: Any) -> Job:
    """The job of its program on random tokens; every gradient of every iteration comes back."""
    own = plan_of_rank(plan, groups)
    optimizer = replace(ADAMW, name=plan.optimizer, clip_norm=clip_norm(plan))
    training = TrainingConfig(
        plan.model, own.layers_per_stage, max(groups.lengths), optimizer, RANDOM,
        records_gradients=True, layout=TensorLayout.of(own), data_axes=(), groups=groups, **fields,
    )  # fmt: skip
    return Job.of(grouped_program(plan, groups), iterations, training=training, dtype=plan.dtype)


def sequence_by_sequence(plan: Plan, groups: GroupedBatch, iterations: int) -> Reference:
    """One process of plain torch, which is given one sequence at a time: the mean loss over all tokens of a step."""
    return batch_by_batch(plan, [groups] * iterations)


def batch_by_batch(plan: Plan, batches: Sequence[GroupedBatch]) -> Reference:
    """The same of steps whose sequences differ."""
    model, dtype, clip = plan.model, DTYPES[plan.dtype], clip_norm(plan)
    plain = plain_decoder(model, dtype)
    chosen = torch_optimizer(plain, replace(ADAMW, name=plan.optimizer))
    losses, norms, gradients = [], [], []
    for step, groups in enumerate(batches):
        chosen.zero_grad()
        loss = torch.zeros((), dtype=dtype)
        for number, length in enumerate(groups.lengths):
            tokens_BL, targets_BL = RandomTokens(model.vocabulary_size).batch(0, step, (number,), length)
            logits_LV = plain(tokens_BL)[0]
            loss = loss + F.cross_entropy(logits_LV, targets_BL[0], reduction="sum") / groups.num_tokens
        torch.autograd.backward(loss)
        found = {name: p.grad.clone() for name, p in plain.named_parameters() if p.grad is not None}
        losses.append(loss.item())
        norms.append(torch.stack([g.norm() for g in found.values()]).norm().item())
        gradients.append(found)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        chosen.step()
    parameters = {name: p.detach().clone() for name, p in plain.named_parameters()}
    return Reference(tuple(losses), tuple(norms), tuple(gradients), parameters)


def plain_decoder(model: ModelSpec, dtype: torch.dtype) -> PlainDecoder:
    """The whole model at its first values."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        plain = PlainDecoder(model)
    finally:
        torch.set_default_dtype(before)
    plain.load_state_dict(build_model(model, dtype).state_dict())
    return plain
