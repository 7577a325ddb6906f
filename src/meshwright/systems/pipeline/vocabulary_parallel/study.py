"""A vocabulary split over the processes of a pipeline, on this machine: is what it trains what one process trains?

Shapes: B samples, S tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.rank.handler import ValueName
from meshwright.executor.training.training_job import RANDOM, RandomTokens, TrainingConfig
from meshwright.ir.judge.metrics import peak_alive
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Microbatch, ParameterGroup
from meshwright.ir.trace import Trace
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders, with_shares
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.lowering.vocabulary.split import Algorithm, SplitVocabulary
from meshwright.schedules import registered
from meshwright.specs.model.layers import split_layers
from meshwright.specs.model.model import ModelSpec

NUM_PROCESSES, NUM_MICROBATCHES, SEQUENCE_LENGTH = 2, 6, 8
NUM_LAYERS, VOCABULARY_SIZE = 5, 37  # divides by no number of processes: the last rows are padding
MODEL = ModelSpec.decoder(
    NUM_LAYERS, 16, 2, vocabulary_size=VOCABULARY_SIZE, max_sequence_length=SEQUENCE_LENGTH, name="split vocabulary"
)  # fmt: skip
OPTIMIZER = OptimizerConfig("sgd", learning_rate=0.1, weight_decay=0.0, clip_norm=None)


@dataclass(frozen=True)
class SplitCase:
    """One way to run the model. `variant`: plain, split (I and W), recompute, or split recompute. `num_replicas`: of the
    whole pipeline, each on its own samples."""

    algorithm: Algorithm
    schedule: str = "1f1b"
    num_devices: int = NUM_PROCESSES
    variant: str = "plain"
    model: ModelSpec = MODEL
    num_replicas: int = 1

    @property
    def num_stages(self) -> int:
        """Of all devices."""
        return self.num_devices * registered()[self.schedule].num_chunks


def program(layout: SplitCase) -> Program:
    """One training step, its vocabulary split over the devices."""
    orders = registered()[layout.schedule].orders(layout.num_devices, NUM_MICROBATCHES)
    made = program_of_orders(
        orders,
        microbatches=[Microbatch(SEQUENCE_LENGTH, 1.0 / NUM_MICROBATCHES)] * NUM_MICROBATCHES,
        groups=[ParameterGroup(f"stage {stage}", (stage,), 0, ("dp",)) for stage in range(layout.num_stages)],
        collapsed=[Axis("dp", layout.num_replicas, False)],
    )
    if "split" in layout.variant:
        made = SplitBackward()(made)
    if "recompute" in layout.variant:
        made = Recompute()(made)
    made = ReduceGradients()(SplitVocabulary(layout.algorithm)(made))
    return with_shares(OptimizerStep()(Transfers()(made)), registered()[layout.schedule].num_chunks)


def run(layout: SplitCase, pool: Pool) -> JobResult:
    """One iteration in float64, with all gradients and, where they were made, the input gradients of the head."""
    training = TrainingConfig(
        layout.model, split_layers(layout.model.num_layers, layout.num_stages), SEQUENCE_LENGTH, OPTIMIZER,
        source=RANDOM, records_gradients=True,
    )  # fmt: skip
    return pool.run(Job.of(program(layout), 1, training=training, keep=("output_gradient",), dtype="float64"))


@dataclass(frozen=True, eq=False)
class Dense:
    """The same step in one process by torch's autograd: loss, the head's input gradients, all weights' gradients."""

    loss: float
    input_gradients: tuple[Tensor, ...]
    gradients: Mapping[str, Tensor]


@cache
def dense(model: ModelSpec = MODEL, num_replicas: int = 1) -> Dense:
    """Whole tables, whole batch, microbatch by microbatch."""
    stage = build_model(model, torch.float64)
    batches, samples = RandomTokens(model.vocabulary_size), range(num_replicas * NUM_MICROBATCHES)
    tokens, targets = batches.batch(0, 0, samples, SEQUENCE_LENGTH)
    total, inputs = 0.0, []
    head = stage.head
    assert head is not None, "the whole model has a head"
    stage.head = None
    for tokens_S, targets_S in zip(tokens, targets, strict=True):
        x_BSE = stage(tokens_S[None])
        x_BSE.retain_grad()
        logits_BSV = head(x_BSE)
        loss = F.cross_entropy(logits_BSV[0], targets_S, reduction="sum") / targets.numel()
        torch.autograd.backward(loss)
        total += float(loss.detach())
        inputs.append(x_BSE.grad)
    stage.head = head
    found = {name: p.grad for name, p in stage.global_parameters().items() if p.grad is not None}
    return Dense(total, tuple(inputs), found)


def differences(layout: SplitCase, pool: Pool) -> dict[str, float]:
    """Largest |split - dense| over the largest |dense|: of the loss, of dX, of all weights' gradients (dW)."""
    result, wanted = run(layout, pool), dense(layout.model, layout.num_replicas)
    ours = result.gradients[0]
    assert ours.keys() == wanted.gradients.keys(), "both have every parameter once"
    last = program(layout).tables.paths[0][-1].device * layout.num_replicas
    inputs = [
        kept[ValueName("output_gradient", 0, m)]
        for kept in result.values[last : last + layout.num_replicas]
        for m in range(NUM_MICROBATCHES)
    ]
    return {
        "loss": abs(result.losses[0] / wanted.loss - 1),
        "dX": max(_difference(*pair) for pair in zip(inputs, wanted.input_gradients, strict=True)),
        "dW": max(_difference(ours[name], gradient) for name, gradient in wanted.gradients.items()),
    }


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@cache
def _all_differences() -> Mapping[tuple[str, str], float]:
    with Pool(NUM_PROCESSES) as pool:
        found = {
            (algorithm, what): value
            for algorithm in ("one_barrier", "two_barriers", "interlaced")
            for what, value in differences(SplitCase(algorithm), pool).items()
        }
    return found


def difference(algorithm: str, what: str) -> float:
    """Of "loss", "dX" or "dW" on two processes."""
    return _all_differences()[algorithm, what]


@cache
def _executed(algorithm: Algorithm) -> Trace:
    with Pool(NUM_PROCESSES) as pool:
        trace = run(SplitCase(algorithm), pool).trace
    assert trace is not None, "a job that is not interrupted has a trace"
    return trace


def live_microbatches(algorithm: Algorithm) -> float:
    """Microbatches whose activations the first of two processes keeps at once, by the executed trace."""
    return peak_alive(_executed(algorithm))[0]
