"""Several processes: logits are those of one, blocks move on all ranks, a dead rank is named, and no process is left."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.executor.serving.adapter_case import targets_of, write_adapter
from tests.executor.serving.expert_slots import slots_of
from tests.executor.serving.paged_case import BLOCK_TOKENS, FAMILIES, NUM_BLOCKS, their_model
from tests.executor.serving.scattered_blocks import ScatteredBlocks, greedy, prompt, served_work

from meshwright.executor.serving.parallel.parallel_runner import ParallelRunner
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.serving.engine.runner import StepUnderWay
from meshwright.specs.error import ExecutionError, PlanError

OPTIONS = RunnerOptions(
    dtype="float32", block_tokens=BLOCK_TOKENS, num_blocks=NUM_BLOCKS, num_host_blocks=8, num_threads=1
)
TOLERANCE = 2e-5  # of logits: sums in another order
# Family, tp, pp, ep, and how many copies of experts there are.
CASES = {
    "tp": ("qwen3_moe", 2, 1, 1, 0), "pp": ("llama tied", 1, 2, 1, 0), "ep": ("deepseek_v3", 2, 1, 2, 2),
}  # fmt: skip
MORE = {
    **{f"tp {name}": (name, 2, 1, 1, 0) for name in FAMILIES if name != "qwen3_moe"},
    **{
        f"ep {name}": (name, 2, 1, 2, 0)
        for name in FAMILIES
        if any("experts" in key for key in FAMILIES[name])
    },
    "tp pp": ("mistral", 2, 2, 1, 0),
    "tp pp ep": ("gpt_oss", 2, 2, 2, 2),
}


class Case(NamedTuple):
    """Several processes, one, and the folder of an adapter."""

    many: ParallelRunner
    one: TorchRunner
    adapter: Path


def opened(family: str, tp: int, pp: int, ep: int, num_copies: int, folder: Path) -> Case:
    """Both for a model of this family; its experts are placed at random, so many of them twice."""
    write_adapter(their_model(FAMILIES[family], folder), folder / "adapter", targets_of(family), 3, 1)
    served = open_served(folder)
    slots = slots_of(served.model, ep, num_copies) if ep > 1 else ()
    many = ParallelRunner(served, replace(OPTIONS, tp=tp, pp=pp, ep=ep, expert_slots=slots))
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


@pytest.mark.parametrize("case", ["pp"], indirect=True)
def test_a_stage_goes_on_while_the_next_one_is_late(case: Case) -> None:
    """The last stage is stopped: the first one computes both steps, a third is not taken until logits are."""
    runner, last = case.many, case.many.process_ids[-1]
    works = [[(name, prompt(9, number))] for number, name in enumerate("abc")]
    blocks, alone = ScatteredBlocks(runner), ScatteredBlocks(case.one)
    inputs = [blocks.inputs(work) for work in works]
    expected = [alone.step(*work) for work in works]
    before = runner.ranks.done[0]
    os.kill(last, signal.SIGSTOP)
    try:
        started = [runner.start(each) for each in inputs[:2]]
        third = ThreadPoolExecutor(1).submit(runner.start, inputs[2])
        assert within(30.0, lambda: runner.ranks.done[0] == before + 2)
        assert runner.ranks.done[1] == before and not third.done()
    finally:
        os.kill(last, signal.SIGCONT)
    found = [step.logits().copy() for step in started]
    found.append(third.result().logits())
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_all_ranks_do_the_same_in_the_same_order_however_late_they_are(tmp_path: Path) -> None:
    """Ranks of 2 x 2 are stopped at random while forks, swaps and steps of two lanes run."""
    made, draw = opened("qwen3", 2, 2, 1, 0, tmp_path), random.Random(1)
    runner = made.many
    orders: list[list[int]] = [[] for _ in range(4)]
    runner.ranks.on_done = lambda rank, number: orders[rank].append(number)
    is_over = threading.Event()

    def delay() -> None:
        while not is_over.is_set():
            rank = draw.choice(runner.process_ids)
            os.kill(rank, signal.SIGSTOP)
            is_over.wait(draw.uniform(0.0, 0.02))
            os.kill(rank, signal.SIGCONT)

    delaying = threading.Thread(target=delay)
    delaying.start()
    try:
        blocks, alone = ScatteredBlocks(runner), ScatteredBlocks(made.one)
        under_way: deque[tuple[StepUnderWay, np.ndarray]] = deque()
        for number in range(40):
            work = [(f"{number}", prompt(draw.randint(1, 20), number))]
            under_way.append((runner.start(blocks.inputs(work)), alone.step(*work)))
            if len(under_way) == 2:
                step, theirs = under_way.popleft()
                np.testing.assert_allclose(step.logits(), theirs, rtol=0, atol=TOLERANCE)
            blocks.free += blocks.tables.pop(f"{number}")
            alone.free += alone.tables.pop(f"{number}")
        under_way.popleft()[0].logits()
    finally:
        is_over.set()
        delaying.join()
        runner.close()
    assert orders == [list(range(2, 42))] * 4


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
