"""Sequences of a runner whose blocks lie scattered, and a work that takes every way through them; needs no transformers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.engine.runner import Runner, StepInputs

VOCABULARY = 61


def prompt(length: int, seed: int) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


class ScatteredBlocks:
    """Sequences of a runner, whose blocks lie anywhere. ``tables``: blocks by name, ``lengths``: tokens in them."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self.free = np.random.default_rng(seed).permutation(runner.num_blocks).tolist()
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step(
        self, *work: tuple[str, Sequence[int]], all_rows: bool = False, adapters: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        """New tokens of some sequences in one step; logits of the last row of each, or of all."""
        inputs = self.inputs(work, all_rows, adapters)
        for name, tokens in work:
            self.lengths[name] += len(tokens)
        return self.runner.forward(inputs).copy()

    def inputs(
        self, work: Sequence[tuple[str, Sequence[int]]], all_rows: bool = False, adapters: Sequence[int] = ()
    ) -> StepInputs:
        """What the step is given; blocks are taken as they are needed."""
        pasts = [self.lengths.setdefault(name, 0) for name, _ in work]
        counts = [len(tokens) for _, tokens in work]
        for (name, _), past, count in zip(work, pasts, counts, strict=True):
            table = self.tables.setdefault(name, [])
            while len(table) * self.runner.block_tokens < past + count:
                table.append(self.free.pop())
        held = [self.tables[name] for name, _ in work]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return StepInputs(
            token_ids=np.array([t for _, tokens in work for t in tokens], np.int64),
            positions=np.concatenate([np.arange(p, p + c) for p, c in zip(pasts, counts, strict=True)]).astype(np.int64),
            query_starts=starts,
            past_lengths=np.array(pasts, np.int32),
            block_ids=np.array([block for table in held for block in table], np.int32),
            block_starts=np.concatenate([[0], np.cumsum([len(table) for table in held])]).astype(np.int32),
            max_context=max(p + c for p, c in zip(pasts, counts, strict=True)),
            rows=np.arange(starts[-1]) if all_rows else (starts[1:] - 1).astype(np.int64),
            adapters=adapters,
        )  # fmt: skip

    def fork(self, name: str, other: str) -> None:
        """`other` goes on where `name` is: full blocks are shared, a partly filled one is copied."""
        table, length = list(self.tables[name]), self.lengths[name]
        if length % self.runner.block_tokens:
            copied = self.free.pop()
            self.runner.move_blocks((), [(table[-1], copied)], ())
            table[-1] = copied
        self.tables[other], self.lengths[other] = table, length


def greedy(blocks: ScatteredBlocks, prompts: dict[str, list[int]], num_tokens: int) -> dict[str, list[int]]:
    """All prompts in one step, then decodes of all together."""
    logits = blocks.step(*prompts.items())
    found: dict[str, list[int]] = {name: [] for name in prompts}
    for _ in range(num_tokens):
        last = dict(zip(prompts, logits.argmax(1).tolist(), strict=True))
        for name, token in last.items():
            found[name].append(token)
        logits = blocks.step(*((name, [token]) for name, token in last.items()))
    return found


def served_work(runner: Runner) -> list[np.ndarray]:
    """Packed prompts, a fork, a swap, a chunk beside decodes."""
    blocks = ScatteredBlocks(runner, 1)
    found = [blocks.step(("a", prompt(13, 1)), ("b", prompt(5, 2)), all_rows=True)]
    blocks.fork("a", "c")
    table = blocks.tables["b"]
    runner.move_blocks([(block, place) for place, block in enumerate(table)], (), ())
    found.append(blocks.step(("a", [7]), ("c", prompt(9, 3))))
    blocks.tables["b"] = [blocks.free.pop() for _ in table]
    runner.move_blocks((), (), [(place, block) for place, block in enumerate(blocks.tables["b"])])
    found.append(blocks.step(("b", [9]), ("d", prompt(21, 4)), ("a", [1])))
    return found
