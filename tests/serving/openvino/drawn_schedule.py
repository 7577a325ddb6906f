"""A schedule by dice: prompts come and go, are cut into chunks, share prefixes, are swapped out, forgotten and forked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.serving.openvino.step import Piece, logits_of

from meshwright.serving.engine.runner import Runner

MOST_RUNNING, LONGEST_CHUNK = 6, 40


@dataclass
class Running:
    """A sequence and where its blocks are."""

    prompt: tuple[int, ...]
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    past: int = 0


@dataclass
class DrawnSchedule:
    """Serves prompts greedily on a runner; `happened` counts what dice decided."""

    runner: Runner
    num_new: int
    dice: random.Random
    happened: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("chunk", "prefix", "swap", "recompute", "fork"), 0)
    )

    def outputs(self, prompts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
        """The tokens behind each prompt."""
        self.free = list(range(self.runner.num_blocks))
        self.dice.shuffle(self.free)
        self.kept: dict[
            tuple[int, ...], list[int]
        ] = {}  # full blocks of prompts by what is in them, never freed
        waiting, running, done = list(reversed(prompts)), [], {}
        while waiting or running:
            while waiting and len(running) < MOST_RUNNING:
                running.append(self._begun(waiting.pop()))
            chosen = self.dice.sample(running, self.dice.randint(1, len(running)))
            for one in chosen:
                self._disturb(one)
            self._advance(chosen)
            for one in [x for x in chosen if len(x.tokens) == len(x.prompt) + self.num_new]:
                running.remove(one)
                done[one.prompt] = one.tokens[len(one.prompt) :]
                self.free += self._own(one)
        return done

    def _begun(self, prompt: tuple[int, ...]) -> Running:
        """Behind the longest prefix whose blocks are kept."""
        one, size = Running(prompt, list(prompt)), self.runner.block_tokens
        for count in range((len(prompt) - 1) // size, 0, -1):
            if (blocks := self.kept.get(prompt[: count * size])) is not None:
                self.happened["prefix"] += 1
                one.blocks, one.past = list(blocks), count * size
                break
        return one

    def _disturb(self, one: Running) -> None:
        """Sometimes its blocks go elsewhere: by host memory, by a copy (as of a fork), or they are lost."""
        own = self._own(one)
        if not own or self.dice.random() > 0.15:
            return
        kind = self.dice.choice(("swap", "recompute", "fork"))
        self.happened[kind] += 1
        if kind == "recompute":
            self.free += own
            one.blocks, one.past = [], 0
            return
        fresh = self._taken(len(own))
        host = self.dice.sample(range(self.runner.num_host_blocks), len(own))
        if kind == "fork":
            self.runner.move_blocks((), list(zip(own, fresh)), ())
        else:
            self.runner.move_blocks(list(zip(own, host)), (), ())
            self.runner.move_blocks((), (), list(zip(host, fresh)))
        new_place = dict(zip(own, fresh))
        one.blocks = [new_place.get(block, block) for block in one.blocks]
        self.free += own

    def _advance(self, chosen: Sequence[Running]) -> None:
        """A chunk of those that have tokens to compute, one step for all."""
        pieces = []
        for one in chosen:
            wanted = len(one.tokens) - one.past
            size = min(wanted, self.dice.randint(1, LONGEST_CHUNK))
            self.happened["chunk"] += size < wanted
            held = -(-(one.past + size) // self.runner.block_tokens)
            one.blocks += self._taken(held - len(one.blocks))
            pieces.append(Piece(one.tokens[one.past : one.past + size], one.past, one.blocks))
        best = logits_of(self.runner, *pieces).argmax(-1)
        for one, piece, token in zip(chosen, pieces, best):
            one.past += len(piece.tokens)
            if one.past == len(one.tokens):
                one.tokens.append(int(token))
            self._keep(one)

    def _keep(self, one: Running) -> None:
        """Full blocks of its prompt stay for others, as long as there is room."""
        size, has_room = self.runner.block_tokens, len(self.free) > self.runner.num_blocks // 2
        count = min(one.past, len(one.prompt)) // size
        if has_room and count and one.prompt[: count * size] not in self.kept and not self._is_shared(one):
            self.kept[one.prompt[: count * size]] = one.blocks[:count]

    def _is_shared(self, one: Running) -> bool:
        return len(self._own(one)) < len(one.blocks)

    def _own(self, one: Running) -> list[int]:
        kept = {block for blocks in self.kept.values() for block in blocks}
        return [block for block in one.blocks if block not in kept]

    def _taken(self, count: int) -> list[int]:
        return [self.free.pop(self.dice.randrange(len(self.free))) for _ in range(max(count, 0))]


def prompts_by(dice: random.Random, count: int, vocabulary: int) -> list[tuple[int, ...]]:
    """Prompts of 2 to 90 tokens; every third begins as one of two others do, for two blocks."""
    starts = [tuple(dice.randrange(vocabulary) for _ in range(64)) for _ in range(2)]
    found = []
    for number in range(count):
        tail = tuple(dice.randrange(vocabulary) for _ in range(dice.randint(2, 90)))
        found.append(dice.choice(starts) + tail[:20] if number % 3 == 0 else tail)
    return found
