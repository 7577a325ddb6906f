"""What runs here: a random model's steps in nano-batches beside whole ones, and what forming batches ahead wastes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.weights.hugging_face import save_hugging_face
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.runner import Pair, StepInputs
from meshwright.serving.engine.runner_engine import RunnerEngine
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import WallClock
from meshwright.serving.loop.request_log import RequestLog
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.serving.nano_flow.nano_batch import TILE, Cut

MODEL = ModelSpec.decoder(
    4, 64, 4, num_kv_heads=2, vocabulary_size=127, max_sequence_length=512, name="random"
)
BLOCK_TOKENS, NUM_BLOCKS, SEED = 16, 192, 3
DECODES, SEEN = 48, 40  # of the step that is cut: sequences that decode, and tokens in each
CHUNK = 4 * TILE - DECODES  # of a prompt beside them
SCALE = 8.0  # of the weights: else the logits of a random model hardly tell its tokens apart
NUM_ENDS = 6  # of the first tokens of the vocabulary end a text
MOST_OUTPUT, NUM_REQUESTS = 40, 24


@contextmanager
def opened_runner() -> Iterator[TorchRunner]:
    """A model of random weights, from a folder as people have them."""
    weights = dict(build_model(MODEL, seed=SEED).global_parameters())
    grown = {name: each * SCALE if each.dim() > 1 else each for name, each in weights.items()}
    with TemporaryDirectory() as folder:
        save_hugging_face(MODEL, grown, Path(folder) / "model")
        options = RunnerOptions(dtype="float32", block_tokens=BLOCK_TOKENS, num_blocks=NUM_BLOCKS)
        runner = TorchRunner(open_served(Path(folder) / "model"), options)
        try:
            yield runner
        finally:
            runner.close()


def largest_difference(most: int) -> float:
    """Between logits of a step in so many nano-batches and of the whole step, over the spread of the logits: decodes beside a
    chunk of a prompt, cut where the mechanism cuts."""
    halves = {2: ((0.5, 0.5), (1, 1)), 4: ((0.25, 0.25, 0.25, 0.25), (2, 2))}
    cut = Cut(*halves[most])
    batch = BatchShape.of([(0, CHUNK)], DECODES, DECODES * SEEN)
    cuts = np.cumsum([part.num_tokens for part in cut.batches(batch)])[:-1].tolist()
    assert len({0, *cuts, batch.num_tokens}) == most + 1, "no nano-batch is empty"
    with opened_runner() as runner:
        runner.forward(_step([SEEN] * DECODES, [0] * DECODES))
        mixed = _step([1] * DECODES + [CHUNK], [SEEN] * DECODES + [0])
        whole = runner.forward(mixed).copy()
        parts = runner.forward_cut(mixed, cuts)
    return float(np.abs(parts - whole).max() / whole.std())


def wasted_per_end() -> float:
    """Tokens computed for nobody, over sequences that a token ended, with two batches under way. Who ends at its limit wastes
    none: that is known before."""
    draw = np.random.default_rng(SEED)
    prompts = [draw.integers(0, MODEL.vocabulary_size, 12).tolist() for _ in range(NUM_REQUESTS)]
    requests = [Request(str(i), len(prompt), MOST_OUTPUT, 0.0, prompt) for i, prompt in enumerate(prompts)]
    log = RequestLog()
    with opened_runner() as runner:
        counting = _CountedRunner(runner)
        scheduler = Scheduler(ContinuousBatching(), BlockPool(NUM_BLOCKS, BLOCK_TOKENS), Limits(64, 16, 512))
        clock = WallClock()
        engine = RunnerEngine(counting, clock.now_s, range(NUM_ENDS), depth=2)
        ServingLoop(scheduler, engine, RecordedArrivals(requests), clock, [log]).run()
        engine.close()
    needed = sum(each.request.num_prompt_tokens + each.num_tokens - 1 for each in log.records)
    early = sum(each.num_tokens < MOST_OUTPUT for each in log.records)
    assert 0 < early < len(log.records), "some end by a token, some at their limit"
    return (counting.num_tokens - needed) / early


class _CountedRunner:
    """A runner that counts the tokens which another computes."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner, self.num_tokens = runner, 0
        self.block_tokens, self.num_blocks, self.num_host_blocks = runner.block_tokens, runner.num_blocks, 0
        self.vocabulary_size, self.max_model_tokens = runner.vocabulary_size, runner.max_model_tokens

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """As the runner."""
        self.num_tokens += len(inputs.token_ids)
        return self._runner.forward(inputs)

    def move_blocks(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """As the runner."""
        self._runner.move_blocks(swap_out, copies, swap_in)

    def close(self) -> None:
        """Who opened the runner closes it."""


def _step(counts: Sequence[int], pasts: Sequence[int]) -> StepInputs:
    """Random new tokens of as many sequences, each behind tokens that are in its own blocks; logits of all are wanted."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    held = [-(-(past + count) // BLOCK_TOKENS) for past, count in zip(pasts, counts, strict=True)]
    first = [number * -(-(SEEN + 1) // BLOCK_TOKENS) for number in range(len(counts))]
    return StepInputs(
        token_ids=np.random.default_rng(SEED).integers(0, MODEL.vocabulary_size, starts[-1]),
        positions=np.concatenate(
            [np.arange(past, past + count) for past, count in zip(pasts, counts, strict=True)]
        ),
        query_starts=starts.astype(np.int32),
        past_lengths=np.array(pasts, np.int32),
        block_ids=np.concatenate(
            [np.arange(block, block + number) for block, number in zip(first, held, strict=True)]
        ).astype(np.int32),
        block_starts=np.concatenate([[0], np.cumsum(held)]).astype(np.int32),
        max_context=max(past + count for past, count in zip(pasts, counts, strict=True)),
        rows=np.arange(starts[-1]),
    )
