"""The generator: an open loop sends requests when they are due, whatever became of others; a closed one when others end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.serving.load.event_client import EventClient, ServerAddress
from meshwright.serving.load.load_prompt import prompt_of
from meshwright.serving.load.load_record import LoadRecord
from meshwright.serving.request.arrival import ClosedLoop
from meshwright.serving.request.request import Request
from meshwright.specs.error import ExecutionError, SpecError

PATH, MODELS = "/v1/completions", "/v1/models"
LONGEST_ERROR = 200  # characters of a reason by which failures are counted


@dataclass(frozen=True)
class LoadPlan:
    """How requests are sent.

    Args:
        model: its name on the server; "": the first one that the server names.
        clients: of a closed loop; 0: an open loop, by arrivals.
        think_s: that a client waits before it sends again.
        ignores_end: ask for as many tokens as were recorded, whatever the model says (vLLM's `ignore_eos`)?
        block_tokens: of the keys of common prefixes.
        vocabulary: drawn tokens are below it, and below `vocab_size` where the server tells it.
        timeout_s: after which a request has failed.
        seed: of drawn tokens.
    """

    model: str = ""
    clients: int = 0
    think_s: float = 0.0
    ignores_end: bool = True
    block_tokens: int = 16
    vocabulary: int = 1000
    timeout_s: float = 600.0
    seed: int = 0


def send_load(
    address: ServerAddress, requests: Sequence[Request], plan: LoadPlan, said: Callable[[int, int], None]
) -> list[LoadRecord]:
    """Send all requests; a record for each, in the order in which they were sent. `said` hears how many of how many ended.

    Raises:
        SpecError: there are no requests.
        ExecutionError: the server names no model.
    """
    if not requests:
        raise SpecError("no requests are sent", allowed="at least one")
    return asyncio.run(_Load(EventClient(address), plan, len(requests), said).run(requests))


def first_model(address: ServerAddress) -> str:
    """The first model that a server names. Raises ExecutionError."""
    return str(asyncio.run(_first_card(EventClient(address)))["id"])


async def _first_card(client: EventClient) -> dict[str, Any]:
    """What a server says of the first model that it names. Raises ExecutionError."""
    said = await client.get(MODELS)
    try:
        card = dict(said["data"][0])
        return {**card, "id": card["id"]}
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ExecutionError("the server names no model", next="name one with --model") from error


class _Load:
    """One load under way."""

    def __init__(
        self, client: EventClient, plan: LoadPlan, num_requests: int, said: Callable[[int, int], None]
    ) -> None:
        self._client, self._plan, self._num, self._said = client, plan, num_requests, said
        self._model, self._vocabulary = plan.model, plan.vocabulary
        self._num_ended = 0
        self._began_s = 0.0
        self.records: list[LoadRecord] = []

    async def run(self, requests: Sequence[Request]) -> list[LoadRecord]:
        """All of it."""
        if not self._model:
            card = await _first_card(self._client)
            self._model = card["id"]
            told = card.get("vocab_size")
            if isinstance(told, int) and told > 1:
                self._vocabulary = min(self._vocabulary, told)
        bodies = {
            id(each): self._body(each) for each in requests
        }  # made before: nothing is drawn while it counts
        self._began_s = time.monotonic()
        if self._plan.clients:
            await self._closed(requests, bodies)
        else:
            tasks = []
            for each in requests:
                await asyncio.sleep(max(0.0, each.arrival_s - self._now_s()))
                tasks.append(asyncio.create_task(self._send(bodies[id(each)], each, each.arrival_s)))
            await asyncio.gather(*tasks)
        return self.records

    async def _closed(self, requests: Sequence[Request], bodies: dict[int, dict[str, Any]]) -> None:
        by_id = {each.id: bodies[id(each)] for each in requests}
        loop = ClosedLoop(requests, self._plan.clients, self._plan.think_s)

        async def client(first: Request) -> None:
            request: Request | None = first
            while request is not None:
                await asyncio.sleep(max(0.0, request.arrival_s - self._now_s()))
                await self._send(by_id[request.id], request, request.arrival_s)
                request = loop.after(self._now_s())

        await asyncio.gather(*(client(first) for first in loop.first()))

    async def _send(self, body: dict[str, Any], request: Request, due_s: float) -> None:
        """Send one and time what comes; a failure is a record, too."""
        record = LoadRecord(due_s, num_prompt_tokens=request.num_prompt_tokens)
        self.records.append(record)
        record.sent_s = self._now_s()
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                async for event in self._client.events(PATH, body):
                    self._take(record, event)
            record.end_s = self._now_s()
        except TimeoutError:
            record.error = f"no end within {self._plan.timeout_s:g} s"
        except ExecutionError as error:
            record.error = str(error)[:LONGEST_ERROR]
        if record.is_good and not record.token_s:
            record.error = "an answer without a token"
        self._num_ended += 1
        self._said(self._num_ended, self._num)

    def _take(self, record: LoadRecord, event: Any) -> None:
        """An event came: with tokens, or with the server's count of them."""
        try:
            if event.get("choices"):
                record.token_s.append(self._now_s())
                record.num_tokens = max(record.num_tokens, len(record.token_s))
            usage = event.get("usage")
            if usage:
                record.num_prompt_tokens, record.num_tokens = (
                    usage["prompt_tokens"],
                    usage["completion_tokens"],
                )
        except (AttributeError, KeyError, TypeError) as error:
            raise ExecutionError("an event that is none of a completion") from error

    def _body(self, request: Request) -> dict[str, Any]:
        plan = self._plan
        prompt = prompt_of(request, plan.block_tokens, self._vocabulary, plan.seed)
        body = {
            "model": self._model, "prompt": prompt, "max_tokens": request.num_output_tokens or request.max_output_tokens,
            "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.0,
        }  # fmt: skip
        return {**body, "ignore_eos": True} if plan.ignores_end else body

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s
