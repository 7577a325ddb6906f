"""A user's Sequential as a pipeline: equal to one process of plain torch, and what cannot be cut is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.api.trainings.training import run_training as train_plan
from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.sequential import build_sequential_stage, load_function, load_modules
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, RandomTokens
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.source import Source
from tests.training_case import (
    ADAMW,
    SEQUENCE,
    SGD,
    Case,
    largest_difference,
    program_of,
    torch_optimizer,
    training_of,
)

TOLERANCE, ADAMW_TOLERANCE = 1e-10, 1e-8
ITERATIONS = 3
# The plan's model stands for it: five layers, hidden size 16, vocabulary 29.
MODEL = ModelSpec.decoder(5, 16, 2, vocabulary_size=29, max_sequence_length=SEQUENCE)
MINE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + self.mix(self.norm(x))[0]

def model():
    return nn.Sequential(nn.Embedding(29, 16), *(Block(16) for _ in range(5)), nn.Linear(16, 29))
"""

MEAN = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(2 * width, 64), nn.Linear(64, width)

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        seen = torch.cat((self.norm(x), x.cumsum(1) / count), -1)
        return x + self.down(self.up(seen).relu())

def model():
    return nn.Sequential(nn.Embedding(256, 32), *(Block(32) for _ in range(4)), nn.Linear(32, 256))
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """A file of a user's."""
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path / 'mine.py'}:model"


def _reference(
    source: str, config: OptimizerConfig, batch: int
) -> tuple[list[float], list[dict[str, Tensor]], dict[str, Tensor]]:
    torch.manual_seed(0)
    whole = load_function(source)().double()
    optimizer = torch_optimizer(whole, config)
    losses, gradients = [], []
    for step in range(ITERATIONS):
        tokens_BS, targets_BS = RandomTokens(29).batch(0, step, range(batch), SEQUENCE)
        optimizer.zero_grad()
        loss = F.cross_entropy(whole(tokens_BS).flatten(0, 1), targets_BS.flatten())
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: p.grad.clone() for name, p in whole.named_parameters()})
        optimizer.step()
    return losses, gradients, {name: p.detach() for name, p in whole.named_parameters()}


CASES = [
    Case("1f1b", 1, 2, model=MODEL),
    Case("1f1b", 2, 3, model=MODEL, num_replicas=2),
    Case("1f1b", 3, 3, "recompute", model=MODEL, optimizer=ADAMW),
    Case("interleaved_1f1b", 2, 4, model=MODEL),
    Case("gpipe", 2, 2, model=MODEL, samples=(1, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_training_equals_one_process(case: Case, mine: str, gloo_pool: Pool) -> None:
    training = training_of(case, source=replace(RANDOM, modules=mine))
    result = run_training(program_of(case), training, ITERATIONS, pool=gloo_pool, dtype="float64")
    losses, gradients, parameters = _reference(mine, case.optimizer, case.global_batch)
    assert result.losses == pytest.approx(losses, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, gradients, strict=True):
        assert largest_difference(ours, theirs) < TOLERANCE
    tolerance = TOLERANCE if case.optimizer is SGD else ADAMW_TOLERANCE
    assert largest_difference(result.parameters, parameters) < tolerance
    load_function(mine)().double().load_state_dict(result.parameters)


def test_it_trains_by_a_plan_on_text(tmp_path: Path, gloo_pool: Pool) -> None:
    """A causal mean of what was read so far, of bytes: the loss falls below that of a uniform guess."""
    (tmp_path / "mine.py").write_text(MEAN)
    model = ModelSpec.decoder(4, 32, 2, vocabulary_size=256, max_sequence_length=32)
    plan = Plan.of(model, Cluster("2xcpu"), Workload(8, 32), dtype="float32", pp=2, dp=1)
    source = Source(modules=f"{tmp_path / 'mine.py'}:model")
    done = train_plan(plan, source=source, iterations=30, learning_rate=1e-2, pool=gloo_pool)
    losses = done.result.losses
    assert losses[-1] < 4.5 < 5.4 < losses[0]
    assert set(done.result.parameters) >= {"0.weight", "1.up.weight", "5.weight"}


def test_a_split_backward_is_refused_before_anything_starts(mine: str) -> None:
    for case in (Case("zb_h1", 2, 2, model=MODEL), Case("1f1b", 2, 2, "split", model=MODEL)):
        with pytest.raises(ExecutionError, match="without split backward"):
            run_training(program_of(case), training_of(case, source=replace(RANDOM, modules=mine)), 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dropout": 0.1}, "with dropout"),
        (
            {"source": replace(RANDOM, modules="mine.py:model", weights="folder")},
            "first values from a folder",
        ),
        ({"layout": TensorLayout(tp=2)}, "tensor parallelism"),
        ({"layout": TensorLayout(shard_axes=("dp",))}, "sharded states"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused(fields: dict[str, object], message: str, mine: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        training_of(Case("1f1b", 2, 2, model=MODEL), **({"source": replace(RANDOM, modules=mine)} | fields))


BROKEN = {
    "nn.Linear(16, 29)": "gives a Linear",
    "nn.Sequential(nn.Embedding(29, 16), nn.Linear(16, 29))": "has 2 modules",
    "nn.Sequential(nn.Embedding(29, 16), *[nn.Linear(16, 16)] * 5, nn.Linear(16, 29))": "1 and 2 share a parameter",
    "nn.Sequential(nn.Embedding(29, 16), *[nn.Dropout(0.1)] * 5, nn.Linear(16, 29))": "has a Dropout",
    "nn.Sequential(nn.Embedding(29, 16), *[nn.BatchNorm1d(8) for _ in 'abcde'], nn.Linear(16, 29))": "a BatchNorm1d",
}


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_what_cannot_be_cut_is_refused(number: int, tmp_path: Path) -> None:
    text, message = list(BROKEN.items())[number]
    (tmp_path / "mine.py").write_text(f"from torch import nn\n\ndef model():\n    return {text}\n")
    with pytest.raises(ExecutionError, match=message) as caught:
        load_modules(f"{tmp_path / 'mine.py'}:model", MODEL)
    assert caught.value.allowed


def test_another_width_and_missing_functions_are_refused(mine: str, tmp_path: Path) -> None:
    wide = replace(MODEL, vocabulary_size=31)
    stage = build_sequential_stage(load_modules(mine, wide), wide, range(5), True, True)
    with pytest.raises(ExecutionError, match=r"give \(1, 4, 29\).*\(1, 4, 31\)"):
        stage(torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(ExecutionError, match="masked documents"):
        stage(torch.zeros(1, 4, dtype=torch.int64), None, torch.zeros(1, 4, dtype=torch.int64))
    for source in (
        "model",
        f"{tmp_path / 'other.py'}:model",
        "no.such.module:model",
        mine.replace(":model", ":other"),
    ):
        with pytest.raises(ExecutionError):
            load_function(source)
