"""A runner for tests: a model without weights, whose logits follow from every token that its blocks hold, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.engine.runner import Pair, StepInputs

VOCABULARY = 50


class HashRunner:
    """Its keys and values are the tokens themselves: a wrong block, place or order gives other tokens."""

    vocabulary_size = VOCABULARY
    max_model_tokens = 64

    def __init__(self, num_blocks: int = 40, block_tokens: int = 4, num_host_blocks: int = 0) -> None:
        self.num_blocks, self.block_tokens, self.num_host_blocks = num_blocks, block_tokens, num_host_blocks
        self._blocks = np.full((num_blocks, block_tokens), -1)
        self._host = np.full((num_host_blocks, block_tokens), -1)
        self.num_forwards = 0
        self.failing: Exception | None = None

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Rows of logits whose largest follows from all tokens up to there."""
        assert inputs.token_ids.min() >= 0
        self.num_forwards += 1
        if self.failing is not None:
            raise self.failing
        rows = []
        for place in range(len(inputs.past_lengths)):
            past = int(inputs.past_lengths[place])
            begin, end = int(inputs.query_starts[place]), int(inputs.query_starts[place + 1])
            blocks = inputs.block_ids[inputs.block_starts[place] : inputs.block_starts[place + 1]]
            assert len(blocks) == -(-(past + end - begin) // self.block_tokens)
            for offset in range(end - begin):
                position = past + offset
                assert inputs.positions[begin + offset] == position
                block, slot = divmod(position, self.block_tokens)
                self._blocks[blocks[block], slot] = inputs.token_ids[begin + offset]
                if begin + offset in inputs.rows:
                    rows.append(logits_of(self._blocks[blocks].ravel()[: position + 1]))
        return np.array(rows, np.float32).reshape(-1, VOCABULARY)

    def move_blocks(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """In this order."""
        for block, host in swap_out:
            self._host[host] = self._blocks[block]
        for block, other in copies:
            self._blocks[other] = self._blocks[block]
        for host, block in swap_in:
            self._blocks[block] = self._host[host]

    def close(self) -> None:
        """It holds nothing."""


class PreparedHashStep:
    """A step in one of the two sets of arrays of the next class."""

    def __init__(self, inputs: StepInputs, run: Callable[[], NDArray[np.float32]]) -> None:
        self.token_ids, self.logits = inputs.token_ids, run


class PreparingHashRunner(HashRunner):
    """Has room for two steps: arrays of a third, and its logits, are those of the first, which are spoilt before."""

    def __init__(self, num_blocks: int = 40, block_tokens: int = 4, num_host_blocks: int = 0) -> None:
        super().__init__(num_blocks, block_tokens, num_host_blocks)
        self._room = [(np.zeros(4096, np.int64), np.zeros((256, VOCABULARY), np.float32)) for _ in range(2)]
        self._turns = 0
        self._waiting: deque[int] = deque()

    def prepare(self, inputs: StepInputs) -> PreparedHashStep:
        """As `PreparingRunner.prepare`."""
        turn, self._turns = self._turns, self._turns + 1
        tokens, logits = self._room[turn % 2]
        assert turn - 2 not in self._waiting, "a step that has not run is overwritten"
        tokens.fill(-7), logits.fill(np.nan)
        size, num_rows = len(inputs.token_ids), len(inputs.rows)
        tokens[:size] = inputs.token_ids
        mine = replace(inputs, token_ids=tokens[:size])
        self._waiting.append(turn)

        def run() -> NDArray[np.float32]:
            assert self._waiting.popleft() == turn, "steps run in their order, once"
            logits[:num_rows] = self.forward(mine)
            return logits[:num_rows]

        return PreparedHashStep(mine, run)


class BreakingHashRunner(HashRunner):
    """Behind `broken_token` logits are no numbers."""

    broken_token = 3

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """As usual, but for that."""
        found = super().forward(inputs)
        found[inputs.token_ids[np.sort(inputs.rows)] == self.broken_token] = np.nan
        return found


class PreparingBreakingHashRunner(PreparingHashRunner, BreakingHashRunner):
    """Both."""


class HashStep:
    """A step under way of the next class."""

    def __init__(self, runner: PipelinedHashRunner) -> None:
        self.runner, self.found = runner, list[NDArray[np.float32]]()

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """Nobody else computes."""
        return True

    def logits(self) -> NDArray[np.float32]:
        """Asked once."""
        return self.runner.run(self)


class PipelinedHashRunner(HashRunner):
    """It does nothing of what it is told until somebody asks for logits, and then all that was told before, in order."""

    step_kind = HashStep

    def __init__(self, num_blocks: int, block_tokens: int, num_host_blocks: int, num_lanes: int) -> None:
        super().__init__(num_blocks, block_tokens, num_host_blocks)
        self.num_lanes = num_lanes
        self.most_under_way = self._num_under_way = 0
        self._told: deque[Callable[[], None]] = deque()

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Note it, and ask."""
        return self.start(inputs).logits()

    def start(self, inputs: StepInputs) -> HashStep:
        """Note it."""
        assert self._num_under_way < self.num_lanes
        self._num_under_way += 1
        self.most_under_way = max(self.most_under_way, self._num_under_way)
        step = self.step_kind(self)
        self._told.append(lambda: step.found.append(super(PipelinedHashRunner, self).forward(inputs)))
        return step

    def run(self, step: HashStep) -> NDArray[np.float32]:
        """Somebody asks."""
        self._num_under_way -= 1
        while not step.found:
            self._told.popleft()()
        return step.found[0]

    def move_blocks(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """Note it."""
        self._told.append(lambda: super(PipelinedHashRunner, self).move_blocks(swap_out, copies, swap_in))


def logits_of(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """``[V]``, from all tokens and their order."""
    seed = 0
    for token in tokens.tolist():
        seed = (seed * 1_000_003 + token + 1) % 2**31
    return _drawn(seed)


@lru_cache(100_000)
def _drawn(seed: int) -> NDArray[np.float32]:
    found = np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32)
    found.flags.writeable = False
    return found


def greedy_output(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What it says behind a prompt, by obvious code."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(logits_of(np.array(tokens)).argmax()))
    return tokens[len(prompt) :]
