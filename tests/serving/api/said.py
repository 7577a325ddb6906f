"""A model for tests of the API that says what its prompt tells it to, under the real service: bytes are its tokens, and the
"keys and values" in its blocks are the tokens themselves, so that whatever is lost of them is heard.

    SAY:text|   says this text, then ends
    FAIL        breaks the engine
    others      the letter a to z of each token's position

With an adapter it says the same in capital letters.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.runner import Pair, StepInputs
from meshwright.serving.engine.runner_engine import RunnerEngine
from meshwright.serving.engine.served_adapters import ServedAdapters
from meshwright.serving.loop.clock import WallClock
from meshwright.serving.loop.service import Service
from meshwright.serving.loop.serving_loop import Observer
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.specs.error import ExecutionError, SpecError

END = 256
VOCABULARY = 257
BLOCK_TOKENS = 16
MAX_TOKENS = 4096
TEMPLATE = "{{ messages }} <tool_call>"
SURE, SECOND = 100.0, 60.0  # logits: what is said has probability 1, and "A" comes after it


class SayingRunner:
    """`Runner` whose next token is a function of all tokens before it, read from its blocks."""

    block_tokens = BLOCK_TOKENS
    num_host_blocks = 0
    vocabulary_size = VOCABULARY
    max_model_tokens = MAX_TOKENS

    def __init__(self, num_blocks: int, step_s: float) -> None:
        self.num_blocks, self._step_s = num_blocks, step_s
        self._content = np.zeros((num_blocks, BLOCK_TOKENS), np.int64)
        self._bags = np.zeros((0, VOCABULARY), np.float32)
        self._adapters = 0
        self.dropped: list[int] = []

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        time.sleep(self._step_s)
        ends = {}
        adapted = inputs.adapters or [0] * len(inputs.past_lengths)
        for s in range(len(inputs.query_starts) - 1):
            first, last = inputs.query_starts[s], inputs.query_starts[s + 1]
            blocks = inputs.block_ids[inputs.block_starts[s] : inputs.block_starts[s + 1]]
            at = inputs.positions[first:last]
            self._content[blocks[at // BLOCK_TOKENS], at % BLOCK_TOKENS] = inputs.token_ids[first:last]
            for row in range(first, last):
                ends[row] = (blocks, int(inputs.positions[row]) + 1, adapted[s])
        logits = np.zeros((len(inputs.rows), VOCABULARY), np.float32)
        self._bags = np.zeros_like(logits)
        for number, row in enumerate(inputs.rows.tolist()):
            blocks, length, adapter = ends[row]
            logits[number, ord("A")] = SECOND
            np.add.at(self._bags[number], self._content[blocks].reshape(-1)[:length], 1.0)
            token = next_token(self._content[blocks].reshape(-1)[:length].tolist())
            logits[number, ord(chr(token).upper()) if adapter and token < END else token] = SURE
        return logits

    def move_blocks(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        for source, target in copies:
            self._content[target] = self._content[source]

    def hidden_rows(self) -> NDArray[np.float32]:
        """How often each token stands in the text."""
        return self._bags

    def load_adapter(self, folder: Path) -> int:
        if not (folder / "adapter.txt").is_file():
            raise ExecutionError(f"{folder}/adapter.txt cannot be read")
        self._adapters += 1
        return self._adapters

    def drop_adapter(self, number: int) -> None:
        self.dropped.append(number)

    def close(self) -> None:
        self._content = self._content[:0]


def next_token(tokens: list[int]) -> int:
    """What follows."""
    said = bytes(token for token in tokens if token < END)
    if said.startswith(b"FAIL"):
        raise RuntimeError("a wheel came off at /home/somebody/secret.py")
    if not said.startswith(b"SAY:"):
        return ord("a") + len(tokens) % 26
    script, _, done = said[4:].partition(b"|")
    done = done if script.startswith(done) else done.lower()
    return script[len(done)] if len(done) < len(script) else END


def saying_service(
    step_s: float = 0.0, max_queue: int = 10_000, num_blocks: int = 4096, observers: Sequence[Observer] = (),
    adapters: ServedAdapters | None = None,
) -> Service:  # fmt: skip
    """The real service of this model."""

    def start(clock: WallClock) -> tuple[Scheduler, RunnerEngine]:
        runner = SayingRunner(num_blocks, step_s)
        limits = Limits(max_model_tokens=MAX_TOKENS)
        scheduler = Scheduler(ContinuousBatching(), BlockPool(num_blocks, BLOCK_TOKENS), limits)
        if adapters is not None:
            adapters.attach(runner)
        return scheduler, RunnerEngine(runner, clock.now_s, end_ids=[END], depth=2, adapters=adapters)

    return Service(start, max_queue, observers)


def no_grammar(text: str) -> None:
    """What it says is not held to anything, but what names "never" is refused."""
    if "never" in text:
        raise SpecError("nothing matches it")


class ByteGrowing:
    """Text of bytes, up to a stop text."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop, self._held, self._bytes = tuple(stop), "", b""
        self.stopped: str | None = None

    def add(self, token_id: int) -> str:
        if token_id == END:
            return ""
        self._bytes += bytes([token_id])
        try:
            text, self._bytes = self._bytes.decode(), b""
        except UnicodeDecodeError:
            return ""
        self._held += text
        for stop in self._stop:
            at = self._held.find(stop)
            if at >= 0:
                self.stopped = stop
                return self._held[:at]
        keep = max(
            (n for stop in self._stop for n in range(1, len(stop)) if self._held.endswith(stop[:n])),
            default=0,
        )
        said, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return said

    def end(self) -> str:
        said, self._held = self._held + self._bytes.decode("utf-8", "replace"), ""
        return said


class ByteText:
    """Tokens are bytes."""

    vocabulary_size = VOCABULARY
    chat_template = TEMPLATE

    def encode(self, text: str, adds_special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token != END).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == END else bytes([token_id])

    def growing(self, stop: Sequence[str]) -> ByteGrowing:
        return ByteGrowing(stop)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], adds_prompt: bool = True,
        values: Mapping[str, Any] | None = None,
    ) -> list[int]:  # fmt: skip
        if values and "refuse" in values:
            raise SpecError("the template refuses", allowed="anything else")
        return self.encode(str(messages[-1]["content"]))
