"""/v1/completions: from a body to generations, and from their text to an answer, whole or in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from meshwright.serving.api.answer.logprob import completion_logprobs
from meshwright.serving.api.answer.run import Generations, now
from meshwright.serving.api.body.completion import (
    DEFAULT_TOKENS,
    Completion,
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
)  # fmt: skip
from meshwright.serving.api.body.sampling import FinishReason
from meshwright.serving.api.error import BAD_REQUEST, ApiError
from meshwright.serving.api.generation.caller import NOBODY, Caller
from meshwright.serving.api.generation.generation import TextDelta, TokenLogprobs, merged
from meshwright.serving.api.generation.model_service import ModelService, new_id
from meshwright.serving.api.generation.parameters import sampling_of
from meshwright.serving.request.request import Request

SHORT_TEXT = (
    2_000  # characters that are encoded at once; longer ones in a thread, so that nobody waits for them
)


async def begin_completion(
    model: ModelService, body: CompletionBody, caller: Caller = NOBODY
) -> CompletionRun:
    """Submit what a body asks for. Raises ApiError where any of it is refused; then nothing of it runs."""
    adapter = model.adapter_of(body.model)
    _check_supported(body)
    prompts = await _tokens_of(body, model)
    num_outputs = body.n or 1
    if num_outputs * len(prompts) > model.limits.outputs:
        raise ApiError(
            BAD_REQUEST, f"{num_outputs} outputs of {len(prompts)} prompts; allowed: {model.limits.outputs} together",
            param="n",
        )  # fmt: skip
    sampling = sampling_of(body, model, body.logprobs)
    run = CompletionRun(model, body, new_id("cmpl"), prompts)
    try:
        for number, prompt in enumerate(prompts):
            request = Request(
                id=f"{run.id}-{number}", num_prompt_tokens=len(prompt), prompt=prompt,
                max_output_tokens=model.room_behind(len(prompt), body.max_tokens or DEFAULT_TOKENS),
                priority=body.priority, user=body.user or caller.user, sampling=sampling, num_outputs=num_outputs,
                adapter=adapter,
            )  # fmt: skip
            run.generations.append(await model.begin(request, caller.wait_s(body.timeout_s)))
    except BaseException:
        run.close()
        raise
    return run


@dataclass
class CompletionRun:
    """A completion in the making."""

    model: ModelService
    body: CompletionBody
    id: str
    prompts: Sequence[list[int]]
    created: int = field(default_factory=now)
    generations: Generations = field(default_factory=Generations)

    def close(self) -> None:
        """What still runs is aborted."""
        self.generations.close()

    async def whole(self) -> Completion:
        """All its choices."""
        outputs: dict[int, list[TextDelta]] = {}
        async for number, delta in merged(self.generations):
            outputs.setdefault(self._index(number, delta), []).append(delta)
        choices = [
            self._choice(index, _joined(deltas), "", True) for index, deltas in sorted(outputs.items())
        ]
        return self._answer(choices).model_copy(update={"usage": self.generations.usage})

    async def chunks(self) -> AsyncIterator[Completion]:
        """One for every few tokens of a choice; a last one with the usage, where it is asked for."""
        before: dict[int, str] = {}
        async for number, delta in merged(self.generations):
            index = self._index(number, delta)
            text = before.get(index)
            if delta.text or delta.token_ids or delta.finish_reason:
                yield self._answer([self._choice(index, delta, text or "", text is None)])
            before[index] = (text or "") + delta.text
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield self._answer([]).model_copy(update={"usage": self.generations.usage})

    def _index(self, number: int, delta: TextDelta) -> int:
        return number * (self.body.n or 1) + delta.index

    def _answer(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(id=self.id, created=self.created, model=self.body.model, choices=choices)

    def _choice(self, index: int, delta: TextDelta, before: str, is_first: bool) -> CompletionChoice:
        prompt = self.prompts[index // (self.body.n or 1)]
        echo = self.model.text.decode(prompt) if self.body.echo and is_first else ""
        with_ids = bool(self.body.return_token_ids)
        return CompletionChoice(
            index=index, text=echo + delta.text, logprobs=self._logprobs(delta, len(before)),
            finish_reason=cast("FinishReason | None", delta.finish_reason or None), stop_reason=delta.stop_reason,
            prompt_token_ids=prompt if with_ids and is_first else None,
            token_ids=delta.token_ids if with_ids else None,
        )  # fmt: skip

    def _logprobs(self, delta: TextDelta, offset: int) -> CompletionLogprobs | None:
        if self.body.logprobs is None:
            return None
        return completion_logprobs(self.model.text, delta.token_ids, delta.logprobs, offset)


def _joined(deltas: Sequence[TextDelta]) -> TextDelta:
    """All of an output."""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    for each in deltas:
        tokens += each.token_ids
        logprobs += each.logprobs
    last = deltas[-1]
    text = "".join(each.text for each in deltas)
    return TextDelta(last.index, text, tokens, logprobs, last.finish_reason, last.stop_reason)


def _check_supported(body: CompletionBody) -> None:
    """Raises ApiError for what is known and not done."""
    if body.suffix:
        raise ApiError(BAD_REQUEST, "suffix: text is only continued, never filled in", param="suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError(
            BAD_REQUEST, f"best_of {body.best_of}; allowed: as many as n, all are answered", param="best_of"
        )
    if body.echo and body.logprobs is not None:
        raise ApiError(BAD_REQUEST, "echo with logprobs: a prompt's own are not computed", param="echo")


async def _tokens_of(body: CompletionBody, model: ModelService) -> list[list[int]]:
    """Every prompt as tokens. Raises ApiError."""
    given = body.prompt
    if isinstance(given, str):
        prompts: Sequence[str | list[int]] = [given]
    else:
        prompts = [given] if isinstance(given[0], int) else given
    if len(prompts) > model.limits.prompts:
        raise ApiError(
            BAD_REQUEST, f"{len(prompts)} prompts; allowed: {model.limits.prompts}", param="prompt"
        )
    return [
        await encoded(model, each, body.add_special_tokens) if isinstance(each, str) else each
        for each in prompts
    ]


async def encoded(model: ModelService, text: str, adds_special: bool = True) -> list[int]:
    """Tokens of a text."""
    if len(text) <= SHORT_TEXT:
        return model.text.encode(text, adds_special)
    return await asyncio.to_thread(model.text.encode, text, adds_special)
