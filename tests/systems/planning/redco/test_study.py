"""Decoders cut by rules are the whole ones, in loss and every parameter; tasks of three functions learn."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from tests.covering import always

from meshwright.executor.job.pool import Pool
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.systems.planning.redco import study as redco
from meshwright.systems.planning.redco import tasks
from meshwright.systems.planning.redco.ops import make_task


@pytest.mark.parametrize(("model", "num_processes"), always([*product(redco.MODELS, (2, 4))], {0, 3, 5}))
def test_a_cut_decoder_is_the_whole_one(model: str, num_processes: int, gloo_pool: Pool) -> None:
    assert redco.loss_difference(model, gloo_pool, num_processes) < 1e-10
    # after two steps of Adam, which divides by the size of gradients: 1e-8 in float64
    assert redco.parameter_difference(model, gloo_pool, num_processes) < 1e-8


@pytest.mark.parametrize("model", redco.MODELS)
def test_a_block_has_two_all_reduces(model: str, gloo_pool: Pool) -> None:
    assert redco.block_all_reduces(model, gloo_pool) == 2


def test_a_policy_is_learned_by_three_functions(gloo_pool: Pool) -> None:
    assert redco.reached("policy gradient", gloo_pool) >= 0.95


def test_data_parallel_processes_stay_alike(gloo_pool: Pool) -> None:
    outcome = redco.run_task("maml", 3, gloo_pool, num_microbatches=2)
    assert torch.equal(*outcome.parameters_N) and outcome.losses[0] != outcome.losses[1]


def test_an_untrained_walker_and_a_perfect_one() -> None:
    walker = tasks.Walker(0, 1)
    assert float(walker.predict(walker.first())) < 0.5
    perfect = torch.zeros(walker.side, walker.side, 4)
    perfect[:, :, 0] = 1.0  # right, and down along the last column
    perfect[:, -1] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    assert float(walker.predict(perfect.flatten())) == pytest.approx(1.0)


def test_maml_adapts_by_one_step_of_gradient_descent() -> None:
    maml = tasks.Maml(0, 1, num_tasks=2)
    parameters, network = maml.first(), tasks.sine_network()
    x, y = maml.data((0, 0, 0), parameters)
    errors = []
    for place in range(2):
        leaf = parameters.clone().requires_grad_()
        before = ((tasks.called(network, leaf, x[0, place]) - y[0, place]) ** 2).mean()
        (gradient,) = torch.autograd.grad(before, leaf)
        adapted = parameters - maml.inner_rate * gradient
        errors.append(((tasks.called(network, adapted, x[1, place]) - y[1, place]) ** 2).mean())
    assert torch.allclose(maml.loss(parameters, (x, y)), torch.stack(errors).mean(), rtol=1e-5)


LINE = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

def examples():
    points = torch.rand(64, 2, generator=torch.Generator().manual_seed(1))
    return [(x, x.prod()) for x in points]

def collate(examples):
    return torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])

def loss(model, batch):
    return ((model(batch[0])[:, 0] - batch[1]) ** 2).mean()

def predict(model, batch):
    return model(batch[0])[:, 0] - batch[1]
"""


def test_three_functions_of_a_file_train_on_two_processes(tmp_path: Path, gloo_pool: Pool) -> None:
    path = tmp_path / "mine.py"
    path.write_text(LINE)
    outcome = redco.train_functions(str(path), 150, rate=2e-2, pool=gloo_pool)
    assert torch.equal(*outcome.parameters_N) and outcome.losses[0] != outcome.losses[1]
    assert float(outcome.predictions[0].abs().mean()) < 0.06
    path.write_text(LINE.replace("def predict", "def foresee"))
    with pytest.raises(SpecError, match="has no function predict"):
        redco.train_functions(str(path), 1, pool=gloo_pool)


def test_unknown_tasks_are_refused() -> None:
    with pytest.raises(UnknownNameError):
        make_task("chess", rank=0, num_ranks=1)
    with pytest.raises(UnknownNameError):
        redco.reached("decoder")


@pytest.mark.slow
def test_all_tasks_reach_their_marks(gloo_pool: Pool) -> None:
    assert redco.num_marks_reached(gloo_pool) == 3
