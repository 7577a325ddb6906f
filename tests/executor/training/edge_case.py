"""Models with edges beside the path, in plain torch on one process, and a program of any schedule with these edges.

Shapes: B samples, S tokens of a window, H tokens of half a window, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from tests.training_case import Reference, torch_optimizer
from torch import Tensor, nn

from meshwright.executor.models.weights.initialisation import initial_value
from meshwright.executor.training.training_job import RandomTokens, TrainingConfig
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Microbatch, ParameterGroup
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.stage_edge import ConnectStages, LayerEdge
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.specs.model.model import ModelSpec


def edged_program(
    training: TrainingConfig,
    schedule: str,
    num_devices: int,
    num_microbatches: int,
    variant: str = "plain",
    num_replicas: int = 1,
    tied: Sequence[int] = (),
    passes: Sequence[object] = (),
) -> Program:
    """One training step of a schedule, with the edges of the training; ``tied``: stages that share a table."""
    orders = registered()[schedule].orders(num_devices, num_microbatches)
    num_stages, m = len(training.layers_per_stage), num_microbatches
    groups = [ParameterGroup(f"stage{s}", (s,), 0, ("dp",)) for s in range(num_stages)]
    groups += [ParameterGroup("tied", tuple(tied), 0, ("dp",))] if tied else []
    program = program_of_orders(
        orders,
        microbatches=[Microbatch(training.sequence_length, 1 / m)] * m,
        groups=groups,
        collapsed=[Axis("dp", num_replicas, False)],
    )
    program = SplitBackward()(program) if "split" in variant else program
    program = Recompute()(program) if "recompute" in variant else program
    program = ConnectStages(training.stage_edges())(program)
    program = OptimizerStep()(Transfers()(ReduceGradients()(program)))
    for one in passes:
        program = one(program)  # type: ignore[operator]
    return program


class PlainSkipDecoder(PlainDecoder):
    """A decoder whose block j works on a linear map of its input and the outputs of earlier blocks."""

    def __init__(self, model: ModelSpec, edges: Sequence[LayerEdge]) -> None:
        super().__init__(model)
        self.sources = {t: sorted(e.source for e in edges if e.target == t) for t in range(model.num_layers)}
        self.joins = nn.ModuleDict(
            {
                str(t): nn.Linear((1 + len(found)) * model.hidden_size, model.hidden_size, bias=False)
                for t, found in self.sources.items()
                if found
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        """tokens_BS -> logits_BSV."""
        assert self.embedding is not None and self.final_norm is not None and self.head is not None
        x, outputs = self.embedding(x), []
        cos_SP, sin_SP = self.get_buffer("cos")[: x.shape[1]], self.get_buffer("sin")[: x.shape[1]]
        for number, block in enumerate(self.layers.values()):
            if self.sources[number]:
                x = self.joins[str(number)](torch.cat([x, *(outputs[s] for s in self.sources[number])], -1))
            x = block(x, cos_SP, sin_SP)
            outputs.append(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


def edged_reference(training: TrainingConfig, num_samples: int, iterations: int) -> Reference:
    """What one process finds in float64: the mean loss over all targets, gradients by torch.autograd, torch's optimizer."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model = training.model
        plain = PlainSkipDecoder(model, training.layer_edges)
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for name, p in plain.named_parameters():
            p.copy_(initial_value(name, tuple(p.shape), model.num_layers, training.seed, torch.float64))
    chosen = torch_optimizer(plain, training.optimizer)
    losses, norms, gradients = [], [], []
    for step in range(iterations):
        tokens_BS, targets_BS = RandomTokens(model.vocabulary_size).batch(
            0, step, range(num_samples), training.sequence_length
        )
        chosen.zero_grad()
        logits = plain(tokens_BS)
        loss = F.cross_entropy(logits.flatten(0, 1), targets_BS[:, -logits.shape[1] :].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        found = {name: p.grad.clone() for name, p in plain.named_parameters() if p.grad is not None}
        losses.append(loss.item())
        norms.append(torch.stack([g.norm() for g in found.values()]).norm().item())
        gradients.append(found)
        chosen.step()
    parameters = {name: p.detach().clone() for name, p in plain.named_parameters()}
    return Reference(tuple(losses), tuple(norms), tuple(gradients), parameters)
