"""Several processes: logits are those of one, blocks move on all ranks, a dead rank is named, and no process is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.executor.serving.adapter_case import targets_of, write_adapter
from tests.executor.serving.paged_case import BLOCK_TOKENS, FAMILIES, NUM_BLOCKS, their_model
from tests.executor.serving.scattered_blocks import ScatteredBlocks, greedy, prompt, served_work

from meshwright.executor.serving.parallel.parallel_runner import ParallelRunner
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.specs.error import ExecutionError, PlanError

OPTIONS = RunnerOptions(
    dtype="float32", block_tokens=BLOCK_TOKENS, num_blocks=NUM_BLOCKS, num_host_blocks=8, num_threads=1
)
TOLERANCE = 2e-5  # of logits: sums in another order
CASES = {"tp": ("qwen3_moe", 2, 1), "pp": ("llama tied", 1, 2)}
MORE = {f"tp {name}": (name, 2, 1) for name in FAMILIES if name != "qwen3_moe"} | {"tp pp": ("mistral", 2, 2)}


class Case(NamedTuple):
    """Several processes, one, and the folder of an adapter."""

    many: ParallelRunner
    one: TorchRunner
    adapter: Path


def opened(family: str, tp: int, pp: int, folder: Path) -> Case:
    """Both for a model of this family."""
    write_adapter(their_model(FAMILIES[family], folder), folder / "adapter", targets_of(family), 3, 1)
    served = open_served(folder)
    many = ParallelRunner(served, replace(OPTIONS, tp=tp, pp=pp))
    return Case(many, TorchRunner(served, OPTIONS), folder / "adapter")


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = opened(*CASES[request.param], tmp_path_factory.mktemp("model"))
    yield made
    made.many.close()


def adapted_work(runner: ParallelRunner | TorchRunner, folder: Path) -> list[np.ndarray]:
    """A sequence with an adapter beside one without; the adapter goes again."""
    number, blocks = runner.load_adapter(folder), ScatteredBlocks(runner, 2)
    found = blocks.step(("a", prompt(6, 1)), ("b", prompt(6, 1)), adapters=(number, 0))
    runner.drop_adapter(number)
    assert np.abs(found[0] - found[1]).max() > 0.1
    with pytest.raises(ExecutionError, match="not loaded"):
        blocks.step(("a", [1]), adapters=(number,))
    return [found]


def assert_equal(case: Case) -> None:
    """Every logit of the same work."""
    of_each = [served_work(runner) + adapted_work(runner, case.adapter) for runner in (case.many, case.one)]
    for found, expected in zip(*of_each, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_logits_are_those_of_one_process(case: Case) -> None:
    assert_equal(case)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_all_families(name: str, tmp_path: Path) -> None:
    made = opened(*MORE[name], tmp_path)
    assert_equal(made)
    prompts = {f"{n}": prompt(n, n) for n in (2, 17)}
    ours, theirs = (greedy(ScatteredBlocks(runner, 2), prompts, 12) for runner in (made.many, made.one))
    assert ours == theirs
    made.many.close()


def gone(process: int) -> bool:
    """Has it ended, and been waited for?"""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Does it hold before so long?"""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not condition():
        time.sleep(0.02)
    return condition()


def test_what_ranks_cannot_share_is_refused(tmp_path: Path) -> None:
    their_model(FAMILIES["llama"], tmp_path)
    served = open_served(tmp_path)
    with pytest.raises(PlanError, match="tp=4 does not divide the 2 key-value heads"):
        ParallelRunner(served, replace(OPTIONS, tp=4))
    with pytest.raises(PlanError, match="pp=3 with the 2 layers"):
        ParallelRunner(served, replace(OPTIONS, pp=3))


@pytest.mark.slow
def test_a_rank_that_cannot_read_its_weights_says_why(tmp_path: Path) -> None:
    their_model(FAMILIES["llama"], tmp_path)
    served = open_served(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ExecutionError, match="rank . of the served model failed: SpecError: .*no checkpoint"):
        ParallelRunner(served, replace(OPTIONS, pp=2))


def test_a_dead_rank_is_named_and_nobody_is_left(case: Case) -> None:
    """SIGKILL between two steps, the last of this file; the next one says which rank it was, and so does the one after it."""
    runner = case.many
    processes = runner.process_ids
    blocks = ScatteredBlocks(runner)
    blocks.step(("a", prompt(9, 1)))
    os.kill(processes[1], signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(ExecutionError, match="rank 1 of the served model has ended"):
            blocks.step(("a", [1]))
    assert len(processes) == 2 and within(5.0, lambda: all(map(gone, processes)))
