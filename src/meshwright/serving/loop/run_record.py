"""A run of a loop as it was decided: which requests came before which batch, and what each batch held.

What a record says is enough to serve the same load again, step for step, on any engine: a scheduler whose policy, blocks and
limits are the same decides the same, whatever its steps take.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.serving.engine.engine import INFINITY, Engine, StepResult
from meshwright.serving.loop.clock import Clock
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence as RunningSequence
from meshwright.serving.request.request import Request
from meshwright.specs.error import RequestRefused, SpecError

SCHEMA = 1
KEY_BYTES = 8  # of a block's key in a record, which has no tokens


@dataclass
class RecordedStep:
    """One batch.

    Args:
        lane: of which.
        chunks: (request, output, start, tokens) each.
        decodes: (request, output) each.
        moves: how many blocks were swapped out, swapped in and copied.
        start_s, end_s: when it ran; NaN where it never did.
    """

    lane: int
    chunks: list[tuple[str, int, int, int]]
    decodes: list[tuple[str, int]]
    moves: tuple[int, int, int]
    start_s: float = float("nan")
    end_s: float = float("nan")

    @property
    def decision(self) -> tuple[object, ...]:
        """All but the times."""
        return self.lane, self.chunks, self.decodes, self.moves


@dataclass
class RecordedRequest:
    """A request of a record.

    Args:
        fields: of the request.
        batch: number of the first batch that was chosen with it there.
        num_tokens, keys: what each output got, and what its full blocks held then, for others to find.
        left: the first batch that was chosen after an output was ended from outside, of those that were.
    """

    fields: dict[str, Any]
    batch: int
    num_tokens: dict[int, int] = field(default_factory=dict)
    keys: dict[int, list[str]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)


class RunRecord:
    """Watches a loop, or is read from a file. An engine that is started again ends it: what comes then was decided by another
    scheduler, whose blocks are empty."""

    def __init__(self) -> None:
        self.is_over = False
        self.requests: dict[str, RecordedRequest] = {}
        self.steps: list[RecordedStep] = []

    def arrived(self, request: Request, now_s: float) -> None:
        """It is there from the next batch on."""
        if self.is_over:
            return
        self.requests[request.id] = RecordedRequest(_fields(request), len(self.steps))

    def refused(self, request: Request, now_s: float, why: RequestRefused) -> None:
        """It decides nothing."""

    def given_out(self, batch: Batch, now_s: float) -> None:
        """A step."""
        if batch.number < len(self.steps):
            self.is_over, last = True, len(self.steps)
            self.requests = {name: each for name, each in self.requests.items() if each.batch < last}
        if self.is_over:
            return
        self.steps.append(
            RecordedStep(
                batch.lane,
                [(*_name(chunk.sequence), chunk.start, chunk.num_tokens) for chunk in batch.chunks],
                [_name(each) for each in batch.decodes],
                (len(batch.swap_out), len(batch.swap_in), len(batch.copies)),
            )
        )

    def ran(self, result: StepResult) -> None:
        """When, and who ended. Raises SpecError for a batch that ran several times in one, or gave several tokens to one
        sequence: a record is step by step."""
        if self.is_over:
            return
        if result.speculated:
            raise SpecError("a step gave a sequence several tokens", next="record engines without a decoder")
        if result.num_steps > 1:
            raise SpecError(
                "a batch ran several times in one", next="record engines that run each batch once"
            )
        step = self.steps[result.batch.number]
        step.start_s, step.end_s = result.start_s, result.end_s
        for ended in result.ended:
            name, output = _name(ended.sequence)
            self.requests[name].num_tokens[output] = ended.num_tokens
            self.requests[name].keys[output] = _digests(ended.keys)

    def left(self, sequence: RunningSequence, now_s: float, reason: str) -> None:
        """It is gone from the next batch on."""
        if self.is_over:
            return
        self.requests[sequence.request.id].left[sequence.output] = len(self.steps)

    def write(self, file: Path) -> None:
        """As lines of JSON."""
        with file.open("w") as out:
            out.write(json.dumps({"meshwright-serving-record": SCHEMA}) + "\n")
            for request in self.requests.values():
                out.write(json.dumps({"request": vars(request)}) + "\n")
            for step in self.steps:
                out.write(json.dumps({"step": vars(step)}) + "\n")

    @classmethod
    def read(cls, file: Path) -> RunRecord:
        """Raises SpecError where the file is none, or newer than this version."""
        record = cls()
        with file.open() as lines:
            try:
                head = json.loads(next(lines, "null"))
                if not isinstance(head, dict) or head.get("meshwright-serving-record") != SCHEMA:
                    raise ValueError(f"its first line is {str(head)[:80]}")
                for line in lines:
                    record._take(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise SpecError(
                    f"{file} is no record of a serving run: {error}",
                    allowed=f"schema {SCHEMA}, as `serve --record` writes it",
                ) from None
        return record

    def _take(self, line: dict[str, Any]) -> None:
        if "request" in line:
            request = RecordedRequest(**line["request"])
            request.num_tokens = {int(output): num for output, num in request.num_tokens.items()}
            request.keys = {int(output): keys for output, keys in request.keys.items()}
            request.left = {int(output): batch for output, batch in request.left.items()}
            self.requests[request.fields["id"]] = request
        else:
            step = RecordedStep(**line["step"])
            step.chunks = [tuple(chunk) for chunk in step.chunks]  # type: ignore[misc]
            step.decodes = [tuple(decode) for decode in step.decodes]  # type: ignore[misc]
            step.moves = tuple(step.moves)  # type: ignore[assignment]
            self.steps.append(step)


class RecordArrivals:
    """The requests of a record, each before the batch that it came before; `record` is that of the loop that serves them."""

    def __init__(self, recorded: RunRecord, record: RunRecord) -> None:
        self._waiting = sorted(recorded.requests.values(), key=lambda each: each.batch)
        self._next, self._record = 0, record

    def next_s(self) -> float:
        """Now where it is a request's turn: of one, too, that the loop would otherwise wait for."""
        if self._next == len(self._waiting):
            return INFINITY
        return -INFINITY if self._waiting[self._next].batch <= len(self._record.steps) else INFINITY

    def take(self, now_s: float) -> Sequence[Request]:
        """Those whose turn it is."""
        taken = []
        while self.next_s() < INFINITY:
            each = self._waiting[self._next]
            taken.append(_request(each, now_s))
            self._next += 1
        return taken

    def ended(self, request: Request, now_s: float) -> None:
        """Nobody waits for it."""


class _Remembering:
    """An engine that knows what the blocks of those who end hold, because a record says so."""

    def __init__(self, engine: Engine, recorded: RunRecord) -> None:
        self.num_lanes, self.depth = engine.num_lanes, engine.depth
        self._engine, self._recorded = engine, recorded
        self.forget, self.close = engine.forget, engine.close
        self.next_end_s, self.has_ended = engine.next_end_s, engine.has_ended

    def submit(self, batch: Batch, now_s: float, until_s: float = INFINITY) -> None:
        """Step by step, as it was recorded."""
        batch.repeats = 1
        self._engine.submit(batch, now_s, until_s)

    def poll(self) -> StepResult:
        """What it tells, and the keys."""
        result = self._engine.poll()
        for ended in result.ended:
            name, output = _name(ended.sequence)
            ended.keys = tuple(self._recorded.requests[name].keys.get(output, ()))
        return result


def _name(sequence: RunningSequence) -> tuple[str, int]:
    return sequence.request.id, sequence.output


def _fields(request: Request) -> dict[str, Any]:
    """What decides how it is scheduled; of its tokens, which blocks are equal."""
    return {
        "id": request.id, "num_prompt_tokens": request.num_prompt_tokens, "max_output_tokens": request.max_output_tokens,
        "arrival_s": request.arrival_s, "block_keys": _digests(request.block_keys), "priority": request.priority,
        "user": request.user, "num_outputs": request.num_outputs,
    }  # fmt: skip


def _digests(keys: Iterable[Hashable]) -> list[str]:
    return [hashlib.sha256(repr(key).encode()).hexdigest()[: 2 * KEY_BYTES] for key in keys]


def _request(recorded: RecordedRequest, now_s: float) -> Request:
    """All outputs are as long as the longest."""
    fields = dict(recorded.fields)
    return Request(
        **{**fields, "block_keys": tuple(fields["block_keys"]), "arrival_s": now_s},
        num_output_tokens=max(recorded.num_tokens.values(), default=fields["max_output_tokens"]),
    )


def replay(recorded: RunRecord, scheduler: Scheduler, engine: Engine, clock: Clock) -> RunRecord:
    """Serve a record's requests again: each comes, and is ended from outside, at the batch at which it was; what their
    outputs got is what the engine is told they get. The record of this run has the same decisions where the scheduler
    and the engine's `depth` are as they were.
    """
    record = RunRecord()
    loop = ServingLoop(
        scheduler, _Remembering(engine, recorded), RecordArrivals(recorded, record), clock, [record]
    )
    leaving = sorted(
        (
            (batch, name, output)
            for name, each in recorded.requests.items()
            for output, batch in each.left.items()
        ),
        reverse=True,
    )
    while True:
        while leaving and leaving[-1][0] <= len(record.steps):
            _, name, output = leaving.pop()
            loop.end(name, "abort", output)
        loop.take_arrivals()
        while loop.give_out():
            pass
        if not loop.num_under_way:
            return record
        loop.collect()
