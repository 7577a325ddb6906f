"""Residual stacks turned into branches, on this machine: two processes against one, the slope, and what training gives.

Shapes: B samples, S tokens, C bytes of context, D width of the stream, N numbers of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn

from meshwright.executor import run_program
from meshwright.executor.data.corpus import Corpus
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.models.one_process import mean_of_batches, one_thread, optimise
from meshwright.executor.models.sublayer import KINDS, SublayerSize, first_weight, sublayer
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.handler import ValueName
from meshwright.ir.table import Kind
from meshwright.systems.architecture.shallow_again.card import SCALES, check_form, fitted_slope
from meshwright.systems.architecture.shallow_again.drawn_digits import DIGITS, drawn_digits
from meshwright.systems.architecture.shallow_again.mechanism import HEAD, branch_step, branches_of
from meshwright.systems.architecture.shallow_again.ops import BranchTraining, batch_of, branch, embed, loss_of

NUM_PROCESSES, NUM_CHECKED = 2, 4
NUM_STEPS, NUM_SEEDS, NUM_HELD_OUT = 800, 2, 4096
# Of Adam, falling to a tenth on a cosine.
RATE, LEAST_SHARE = 2e-3, 0.1
Layer = Callable[[Tensor], Tensor]
# The network of images: layers of 3 x 3 convolutions, channels, and how it is trained and held against drawings it never saw.
NUM_CONVOLUTIONS, CHANNELS, IMAGE_BATCH, IMAGE_STEPS, IMAGE_RATE = 6, 8, 32, 800, 3e-3
NUM_TRAINED, NUM_VALIDATED, VALIDATED = 4096, 512, 1_000_000


class ResidualStack(nn.Module):
    """Layers behind each other, each added to the stream that it reads."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind the last layer."""
        return run_form("deep", list(self.layers), x)


class ParallelBranches(nn.Module):
    """Layers that all read the same stream, and their sum added to it."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """The stream with all branches added."""
        return run_form("shallow", list(self.layers), x)


def shallow(stack: ResidualStack) -> ParallelBranches:
    """The transform: the same layers and parameters, side by side."""
    return ParallelBranches(list(stack.layers))


def run_form(form: str, layers: Sequence[Layer], x: Tensor) -> Tensor:
    """A stack of layers, deep or shallow. Raises UnknownNameError on another form."""
    check_form(form)
    stream = x
    for layer in layers:
        stream = stream + layer(stream if form == "deep" else x)
    return stream


def execute(
    training: BranchTraining, num_steps: int, pool: Pool, num_devices: int = NUM_PROCESSES
) -> JobResult:
    """Training steps of the branches on processes of the pool, in float64."""
    stages = training.num_layers + 2
    values = []
    for device in range(num_devices):
        own = [b + 1 for b in branches_of(device, training.num_layers, num_devices)]
        values.append(
            {
                ValueName("parameter", stage): training.first(stage, torch.float64)
                for stage in (0, *own, stages - 1)
            }
        )
    return run_program(
        branch_step(training.num_layers, num_devices),
        initial_values=values,
        iterations=num_steps,
        keep=("parameter",),
        pool=pool,
        dtype="float64",
        options=asdict(training),
    )


def _step_loss(form: str, training: BranchTraining, weights: Sequence[Tensor], step: int) -> Tensor:
    context_BC, target_B = batch_of(training, step)
    return network_loss(form, training, weights, context_BC, target_B)


def network_loss(
    form: str, training: BranchTraining, weights: Sequence[Tensor], context_BC: Tensor, target_B: Tensor
) -> Tensor:
    """Mean nats of the next byte."""
    first, *layers, last = weights
    x_BD = embed(training, first, context_BC)
    y_BD = run_form(form, [partial(branch, training, weight_N) for weight_N in layers], x_BD)
    return loss_of(training, last, y_BD, target_B)


def _first_weights(training: BranchTraining, dtype: torch.dtype) -> list[Tensor]:
    return [training.first(stage, dtype).requires_grad_() for stage in range(training.num_layers + 2)]


def train_alone(training: BranchTraining, num_steps: int) -> list[Tensor]:
    """The same steps of the branches in one process, by torch's autograd: weights of all stages."""
    weights = _first_weights(training, torch.float64)
    for step in range(num_steps):
        gradients = torch.autograd.grad(_step_loss("shallow", training, weights, step), weights)
        with torch.no_grad():
            for weight_N, gradient_N in zip(weights, gradients, strict=True):
                weight_N -= training.rate * gradient_N
    return [weight_N.detach() for weight_N in weights]


def parameter_difference(pool: Pool | None = None, num_devices: int = NUM_PROCESSES) -> float:
    """Largest difference of any parameter after four steps; what several devices have is equal on all of them."""
    training = BranchTraining()
    with opened_pool(pool, NUM_PROCESSES) as workers:
        result = execute(training, NUM_CHECKED, workers, num_devices)
    alone = train_alone(training, NUM_CHECKED)
    found = {name.index for rank in result.values for name in rank}
    assert found == set(range(training.num_layers + 2)), "some device has every stage"
    return max(
        float((value - alone[name.index]).abs().max())
        for rank in result.values
        for name, value in rank.items()
    )


def executed_all_reduces(pool: Pool | None = None) -> float:
    """Collectives that ran on the first process in front of the head, in the last iteration."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        trace = execute(BranchTraining(), 2, workers).trace
    assert trace is not None, "a job that is not interrupted has a trace"
    rows = list(trace.program.instructions(0))
    head_s = next(trace.start_s[-1][row.row] for row in rows if row.name == HEAD)
    return float(sum(r.kind == Kind.COLLECTIVE and trace.end_s[-1][r.row] <= head_s for r in rows))


def transformer_slope() -> float:
    """Of four blocks (attention and feed-forward in turn) whose outputs are scaled by eps."""
    size = SublayerSize(32, 4, 8, 64)
    kinds = KINDS * 4
    weights = [first_weight(size, kind, "slope", j, dtype=torch.float64) for j, kind in enumerate(kinds)]
    generator = keyed_generator(random_key("slope"))
    x_BSD = torch.randn(2, 16, size.width, generator=generator, dtype=torch.float64)

    def layer(kind: str, weight_N: Tensor, eps: float, x: Tensor) -> Tensor:
        return eps * sublayer(size, kind)(x, weight_N)

    differences = []
    for eps in SCALES:
        layers = [partial(layer, kind, w, float(eps)) for kind, w in zip(kinds, weights, strict=True)]
        deep, broad = (run_form(form, layers, x_BSD) for form in ("deep", "shallow"))
        differences.append(float((deep - broad).norm()))
    return fitted_slope(SCALES, np.array(differences))


def trained_loss(form: str, seed: int, num_steps: int = NUM_STEPS) -> float:
    """Held-out nats a byte after training by Adam in one process."""
    training = replace(BranchTraining(), seed=seed)
    weights = _first_weights(training, torch.float32)
    loss = partial(network_loss, form, training, weights)

    def rate(step: int) -> float:
        falling = (1 + math.cos(math.pi * step / num_steps)) / 2
        return RATE * (LEAST_SHARE + (1 - LEAST_SHARE) * falling)

    optimise(loss, torch.optim.Adam(weights), (batch_of(training, step) for step in range(num_steps)), rate)
    held_out = Corpus.standard_library().held_out_batches(NUM_HELD_OUT, training.context, 256)
    return mean_of_batches(loss, ((x, y[:, -1]) for x, y in held_out))


@cache
def mean_loss(form: str, num_steps: int = NUM_STEPS) -> float:
    """Over the seeds."""
    return float(np.mean([trained_loss(form, seed, num_steps) for seed in range(NUM_SEEDS)]))


def loss_ratio() -> float:
    """Shallow over deep."""
    return mean_loss("shallow") / mean_loss("deep")


class ImageNetwork(nn.Module):
    """A convolution that makes channels of a drawing, residual ones as a stack or as branches, and ten logits of means: over
    all of the drawing, or over `places` x `places` parts of it."""

    def __init__(self, form: str, places: int) -> None:
        super().__init__()
        self.places = places
        self.first = nn.Conv2d(1, CHANNELS, 3, padding=1)
        convolutions = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(NUM_CONVOLUTIONS))
        stack = ResidualStack([nn.Sequential(nn.ReLU(), one) for one in convolutions])
        self.layers = stack if form == "deep" else shallow(stack)
        self.head = nn.Linear(CHANNELS * places**2, len(DIGITS))

    def forward(self, images_BHW: Tensor) -> Tensor:
        """Logits of the digits."""
        stream_BCHW = self.layers(self.first(images_BHW[:, None]))
        means = nn.functional.adaptive_avg_pool2d(stream_BCHW.relu(), self.places)
        return self.head(means.flatten(1))  # type: ignore[no-any-return]


@cache
def image_outcome(form: str, seed: int, places: int) -> tuple[float, float]:
    """Nats of drawings it never saw, and the share of them that it names, after training by Adam in one process."""
    check_form(form)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # both forms begin with the same weights
        network = ImageNetwork(form, places)
    images, shown = (torch.from_numpy(each) for each in drawn_digits(NUM_TRAINED, seed))
    held_out, wanted = (torch.from_numpy(each) for each in drawn_digits(NUM_VALIDATED, VALIDATED + seed))
    order = torch.randperm(NUM_TRAINED, generator=keyed_generator(random_key("images", seed)))
    rows = [order.roll(-step * IMAGE_BATCH)[:IMAGE_BATCH] for step in range(IMAGE_STEPS)]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(network(x), y)

    adam = torch.optim.Adam(network.parameters())
    with one_thread():
        optimise(loss, adam, ((images[own], shown[own]) for own in rows), lambda _: IMAGE_RATE)
        with torch.no_grad():
            found = network(held_out).argmax(1) == wanted
        return mean_of_batches(loss, [(held_out, wanted)]), float(found.float().mean())


def image_loss_ratio(places: int) -> float:
    """Shallow over deep, of means over the seeds."""
    deep, broad = (
        np.mean([image_outcome(form, seed, places)[0] for seed in range(NUM_SEEDS)])
        for form in ("deep", "shallow")
    )
    return float(broad / deep)


def image_accuracy(form: str, places: int) -> float:
    """Mean over the seeds."""
    return float(np.mean([image_outcome(form, seed, places)[1] for seed in range(NUM_SEEDS)]))
