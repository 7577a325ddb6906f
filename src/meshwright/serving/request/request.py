"""A request: a prompt, how much may follow, when it came, and how it wants to be treated."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from meshwright.serving.request.sampling_parameters import GREEDY, SamplingParameters
from meshwright.specs.error import SpecError


@dataclass(eq=False, slots=True)
class Request:
    """One request. A real one has its tokens, a recorded one their number only.

    Args:
        id: tells it from all others.
        num_prompt_tokens: from 1.
        max_output_tokens: from 1; the longest output.
        arrival_s: on the clock of the loop that serves it.
        prompt: token ids, where they are known.
        num_output_tokens: how many tokens a recorded request got; None: nobody knows, as of a real one.
        block_keys: what is in each full block of the prompt, as something hashable: equal keys behind equal keys are equal
            prefixes. (): nothing is known of its prefix.
        priority: smaller goes first.
        user: whose it is, for fairness.
        sampling: how its tokens are drawn.
        num_outputs: how many outputs it gets from the same prompt.
        deadline_s: on the same clock as `arrival_s`; what is not done by then is ended. None: none.
        adapter: the name of its LoRA adapter; "": the model's own weights.
        gives_vector: is what the model knows of its last token told, beside the token that comes behind it?
    """

    id: str
    num_prompt_tokens: int
    max_output_tokens: int
    arrival_s: float = 0.0
    prompt: Sequence[int] | None = None
    num_output_tokens: int | None = None
    block_keys: tuple[Hashable, ...] = ()
    priority: int = 0
    user: str = ""
    sampling: SamplingParameters = GREEDY
    num_outputs: int = 1
    deadline_s: float | None = None
    adapter: str = ""
    gives_vector: bool = False

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 1 or self.max_output_tokens < 1 or self.num_outputs < 1:
            raise SpecError(
                f"request {self.id}: {self.num_prompt_tokens} prompt tokens, at most {self.max_output_tokens} output tokens, "
                f"{self.num_outputs} outputs",
                allowed="at least one of each",
            )
        if self.prompt is not None and len(self.prompt) != self.num_prompt_tokens:
            raise SpecError(
                f"request {self.id} says {self.num_prompt_tokens} prompt tokens and has {len(self.prompt)}"
            )
        if self.num_output_tokens is not None and not 1 <= self.num_output_tokens <= self.max_output_tokens:
            raise SpecError(
                f"request {self.id} got {self.num_output_tokens} output tokens",
                allowed=f"1 to {self.max_output_tokens}, its limit",
            )
