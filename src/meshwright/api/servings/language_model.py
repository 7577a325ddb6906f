"""`LLM`: a model that answers in this process, without a server.

with mw.LLM("models/llama") as model:
    for answer in model.generate(["Once upon a time", "In the beginning"], max_tokens=50):
        print(answer.text)
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.api.servings.opened_model import LIMITS, OpenedModel
from meshwright.serving.loop.output_stream import OutputStream
from meshwright.serving.request.request import Request
from meshwright.serving.request.sampling_parameters import SamplingParameters
from meshwright.serving.weight.expert_loads import ExpertLoads
from meshwright.specs.error import ExecutionError, SpecError

ENDS = ("stop", "length")
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class GeneratedText:
    """One output.

    Args:
        text: behind the prompt, without what ended it.
        token_ids: as they were drawn.
        finish_reason: "stop" (the model's own end, a stop token or text) or "length".
        num_prompt_tokens: of its prompt.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    num_prompt_tokens: int


class LLM:
    """Args:
        model: a folder of Hugging Face, a checkpoint of a training, or an id in the local hub cache.
        choice: fields of `EngineChoice`: engine, dtype, device, tp, pp, ...

    Raises:
        SpecError: it cannot be served.
    """

    def __init__(self, model: str | Path, **choice: Any) -> None:
        self._opened = OpenedModel(model, EngineChoice(**choice), max_queue=LIMITS.max_model_tokens)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the model."""
        self._opened.close()

    def expert_loads(self) -> ExpertLoads | None:
        """Rows of all tokens so far by expert, and by device of ep; None of a model without experts."""
        return self._opened.expert_loads()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], *, max_tokens: int = 16, **sampling: Any
    ) -> list[GeneratedText]:
        """Continue prompts, all of them in one batch as far as they fit.

        Args:
            prompts: texts, or lists of token ids; one, or several.
            max_tokens: the longest output.
            sampling: fields of `SamplingParameters`: temperature (1), top_p, seed, stop, ignore_eos, ...

        Returns:
            An output for each, in their order.

        Raises:
            SpecError, RequestRefused: a prompt that cannot be served; nothing runs then.
            ExecutionError: the engine failed.
        """
        text, drawn = self._opened.text, SamplingParameters(**sampling)
        tokens = [text.encode(each) if isinstance(each, str) else list(each) for each in _listed(prompts)]
        return self._served(tokens, max_tokens, drawn)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, max_tokens: int = 256, **sampling: Any
    ) -> GeneratedText:
        """The next message of a conversation; see `generate`."""
        prompt = self._opened.text.chat(messages, (), True, {})
        return self._served([prompt], max_tokens, SamplingParameters(**sampling))[0]

    def _served(
        self, prompts: Sequence[list[int]], max_tokens: int, sampling: SamplingParameters
    ) -> list[GeneratedText]:
        if sampling.grammar:
            self._opened.check_grammar(sampling.grammar)
        streams: list[OutputStream] = []
        try:
            for prompt in prompts:
                self._opened.check_tokens(prompt)
                request = Request(uuid.uuid4().hex, len(prompt), max_tokens, prompt=prompt, sampling=sampling)
                streams.append(self._opened.service.submit(request))
            return [
                self._read(stream, len(prompt), sampling)
                for stream, prompt in zip(streams, prompts, strict=True)
            ]
        finally:
            for stream in streams:
                self._opened.service.abort(stream.request_id)

    def _read(self, stream: OutputStream, num_prompt: int, sampling: SamplingParameters) -> GeneratedText:
        growing = self._opened.text.growing(sampling.stop)
        said, tokens = "", list[int]()
        for delta in stream:
            for token in delta.token_ids:
                said += growing.add(token)
                tokens.append(token)
            if growing.stopped is not None:
                self._opened.service.abort(stream.request_id)
                return GeneratedText(said, tuple(tokens), "stop", num_prompt)
            if delta.finish_reason in ENDS:
                return GeneratedText(said + growing.end(), tuple(tokens), delta.finish_reason, num_prompt)
            if delta.finish_reason:
                raise ExecutionError(delta.error or f"the output ended by {delta.finish_reason}")
        raise ExecutionError("the output broke off")


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One or several prompts as several. Raises SpecError where there are none."""
    if isinstance(prompts, str):
        return [prompts]
    found: list[Any] = list(prompts)
    if not found:
        raise SpecError("no prompts", allowed="a text, token ids, or a list of them")
    return [found] if isinstance(found[0], int) else found
