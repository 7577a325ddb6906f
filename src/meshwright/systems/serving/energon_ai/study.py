"""EnergonAI on this machine: packed against padded steps, pooled weights, and ranks of a pipeline that are stopped."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.models.weights.hugging_face import save_hugging_face
from meshwright.executor.models.weights.initialisation import RandomValues
from meshwright.executor.models.weights.parameter_map import parameter_shapes
from meshwright.executor.serving.parallel.parallel_runner import ParallelRunner
from meshwright.executor.serving.parallel.rank_place import fetched_by_ranks
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import ServedModel, open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.executor.serving.weight.stage_weights import StageReader
from meshwright.serving.engine.runner import StepInputs, StepUnderWay
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.serving.energon_ai.mechanism import PeerPool

MODEL = ModelSpec.decoder(4, 64, 4)
BLOCK_TOKENS, NUM_BLOCKS, NUM_PROMPTS, LONGEST = 16, 128, 16, 64
SERVED = ServedModel(MODEL, RandomValues(MODEL.num_layers), "float32", Path())
OPTIONS = RunnerOptions(dtype="float32", block_tokens=BLOCK_TOKENS, num_blocks=NUM_BLOCKS, num_threads=1)
PRODUCTS = ("aten.mm", "aten.addmm")  # with weights; attention has kernels of its own
NUM_DECODES = 7
STOPPED_S = 0.02  # a rank stands still for at most so long
PATIENCE_S = 60.0


def step_of(prompts: Sequence[NDArray[np.int64]], past: int = 0) -> StepInputs:
    """One step of sequences that all have `past` tokens already, each with blocks of its own; logits of all rows."""
    counts = np.array([len(each) for each in prompts])
    starts = np.concatenate([[0], np.cumsum(counts)])
    per_sequence = -(-(LONGEST + NUM_DECODES + 1) // BLOCK_TOKENS)
    needed = -(-(past + counts) // BLOCK_TOKENS)
    blocks = [number * per_sequence + np.arange(num) for number, num in enumerate(needed.tolist())]
    return StepInputs(
        token_ids=np.concatenate(prompts).astype(np.int64),
        positions=np.concatenate([past + np.arange(num) for num in counts]).astype(np.int64),
        query_starts=starts.astype(np.int32), past_lengths=np.full(len(prompts), past, np.int32),
        block_ids=np.concatenate(blocks).astype(np.int32),
        block_starts=np.concatenate([[0], np.cumsum(needed)]).astype(np.int32),
        max_context=int(past + counts.max()), rows=np.arange(starts[-1], dtype=np.int64),
    )  # fmt: skip


def drawn(lengths: Sequence[int], seed: int = 0) -> list[NDArray[np.int64]]:
    """Random tokens."""
    draw = np.random.default_rng(seed)
    return [draw.integers(0, MODEL.vocabulary_size, length) for length in lengths]


def zipf_lengths(seed: int) -> list[int]:
    """Of prompts, each n with a probability that is proportional to 1 / n."""
    shares = 1.0 / np.arange(1, LONGEST + 1)
    draw = np.random.default_rng(seed)
    found: list[int] = draw.choice(np.arange(1, LONGEST + 1), NUM_PROMPTS, p=shares / shares.sum()).tolist()
    return found


def padded(prompts: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """All as long as the longest."""
    longest = max(map(len, prompts))
    return [np.pad(each, (0, longest - len(each))) for each in prompts]


def packed_difference(seed: int) -> float:
    """Largest |packed - padded| of any logit of a prompt's own tokens, over the largest logit."""
    prompts, runner = drawn(zipf_lengths(seed), seed), TorchRunner(SERVED, OPTIONS)
    packed_RV = runner.forward(step_of(prompts)).copy()
    wide_RV = runner.forward(step_of(padded(prompts))).copy()
    wide_BSV = wide_RV.reshape(len(prompts), -1, MODEL.vocabulary_size)
    own = [rows[: len(prompt)] for rows, prompt in zip(wide_BSV, prompts, strict=True)]
    return float(np.abs(packed_RV - np.concatenate(own)).max() / np.abs(packed_RV).max())


def saved_products() -> float:
    """Share of the work of products with weights that a packed step of prompts of 64 / 1, 64 / 2, .. tokens does not do."""
    prompts = drawn([LONGEST // rank for rank in range(1, NUM_PROMPTS + 1)])
    packed, wide = (_products(step_of(each)) for each in (prompts, padded(prompts)))
    return 1.0 - packed / wide


def _products(inputs: StepInputs) -> int:
    runner = TorchRunner(SERVED, OPTIONS)
    with FlopCounterMode(display=False) as counter:
        runner.forward(inputs)
    counts = counter.get_flop_counts()["Global"]
    return sum(flops for operation, flops in counts.items() if str(operation) in PRODUCTS)


def _pooled(every: int, ahead: int) -> TorchRunner:
    fetched = fetched_by_ranks(PeerPool(every, ahead), MODEL, 1, 1)
    return TorchRunner(SERVED, replace(OPTIONS, fetched=fetched))


def _said(runner: TorchRunner) -> NDArray[np.float32]:
    """Logits of two prompts and of decodes behind them."""
    found = [runner.forward(step_of(drawn((LONGEST, LONGEST)))).copy()]
    for step in range(NUM_DECODES):
        found.append(runner.forward(step_of(drawn((1, 1), step), LONGEST + step)).copy())
    return np.concatenate(found)


def pooled_difference(every: int, ahead: int) -> float:
    """Largest |pooled - resident| of any logit, over the largest."""
    pooled, stays = _pooled(every, ahead), TorchRunner(SERVED, OPTIONS)
    ours, theirs = _said(pooled), _said(stays)
    pooled.close()
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def peak_over_budget(every: int, ahead: int) -> float:
    """Most bytes of weights at any time over what the pool says that it holds."""
    pooled = _pooled(every, ahead)
    _said(pooled)
    (peak,) = pooled.peak_weight_bytes
    pooled.close()
    return peak / PeerPool(every, ahead).held_bytes(block_sizes())


def block_sizes() -> dict[str, float]:
    """Bytes of the model's blocks, as they are read."""
    layers = range(MODEL.num_layers)
    reader = StageReader(SERVED, layers, TensorShard(MODEL), torch.float32, torch.device("cpu"))
    return {block: float(reader.read((block,)).num_bytes) for block in reader.blocks}


@contextmanager
def ranks(tp: int, pp: int) -> Iterator[ParallelRunner]:
    """The model on processes."""
    with tempfile.TemporaryDirectory() as folder:
        values = {
            name: SERVED.source.value(name, shape, torch.float32)
            for name, shape in parameter_shapes(MODEL).items()
        }
        served = open_served(save_hugging_face(MODEL, values, Path(folder) / "model"))
        runner = ParallelRunner(served, replace(OPTIONS, tp=tp, pp=pp))
        try:
            yield runner
        finally:
            runner.close()


def steps_ahead() -> float:
    """Steps that the first of two stages has done when the second, which is stopped, has done none."""
    with ranks(1, 2) as runner:
        last, before = runner.process_ids[1], list(runner.ranks.done)
        has_both = threading.Event()
        runner.ranks.on_done = lambda rank, number: has_both.set() if number == before[0] + 2 else None
        os.kill(last, signal.SIGSTOP)
        try:
            started = [runner.start(step_of(drawn((LONGEST,)))) for _ in range(2)]
            has_both.wait(PATIENCE_S)
            ahead = runner.ranks.done[0] - runner.ranks.done[1]
        finally:
            os.kill(last, signal.SIGCONT)
        for step in started:
            step.logits()
    return float(ahead)


def num_orders(num_steps: int) -> float:
    """Different orders in which four ranks did so many steps, while one after the other stood still for a moment."""
    with ranks(2, 2) as runner:
        orders: list[list[int]] = [[] for _ in runner.process_ids]
        runner.ranks.on_done = lambda rank, number: orders[rank].append(number)
        with _standing_still(runner.process_ids):
            under_way: deque[StepUnderWay] = deque()
            for number in range(num_steps):
                under_way.append(runner.start(step_of(drawn((1 + number,)))))
                if len(under_way) == runner.num_lanes:
                    under_way.popleft().logits()
            for step in under_way:
                step.logits()
    assert all(len(order) == num_steps for order in orders)
    return float(len({tuple(order) for order in orders}))


@contextmanager
def _standing_still(processes: Sequence[int]) -> Iterator[None]:
    """A thread stops processes at random, one at a time."""
    is_over, draw = threading.Event(), random.Random(0)

    def stop_some() -> None:
        while not is_over.is_set():
            process = draw.choice(processes)
            os.kill(process, signal.SIGSTOP)
            is_over.wait(draw.uniform(0.0, STOPPED_S))
            os.kill(process, signal.SIGCONT)

    thread = threading.Thread(target=stop_some)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
