"""How the tokens of one request are drawn, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.error import SpecError


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """As the field writes them; the defaults draw from the model's own distribution.

    Args:
        temperature: divides the logits; 0 takes the most probable token.
        top_k: keep the k most probable tokens; 0: all.
        top_p: keep the smallest set of the tokens that top_k and min_p leave whose probability among these reaches p, within
            (0, 1].
        min_p: keep tokens of at least min_p times the largest probability.
        presence_penalty: subtracted from the logit of a token that was generated before.
        frequency_penalty: the same, times how often it was generated.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output; 1: none.
        seed: of this request; None: one is drawn for it. Token t of output i is drawn with key (seed, i, t), so it is the
            same in every batch.
        stop: texts that end the output; they are not part of it.
        stop_token_ids: tokens that end the output, beside the model's own end.
        ignore_eos: goes on behind the model's end of text.
        num_logprobs: log-probabilities of so many best tokens are told beside the chosen one's, in the model's own
            distribution, before all that stands here; None: none at all.
        logit_bias: added to the logits of these tokens, as pairs (token, bias).
        grammar: what the output has to match (a JSON schema, or another kind: `sampling.grammar.grammar_text`); "": anything.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str = ""

    def __post_init__(self) -> None:
        ranges = (
            ("temperature", 0.0 <= self.temperature < float("inf"), "from 0"),
            ("top_k", self.top_k >= 0, "from 1, or 0 for all"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0, at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "0 to 1"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "-2 to 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "-2 to 2"),
            ("repetition_penalty", 0.0 < self.repetition_penalty < float("inf"), "above 0"),
        )
        for name, is_allowed, allowed in ranges:
            if not is_allowed:
                raise SpecError(f"{name} is {getattr(self, name)}", allowed=allowed)

    @property
    def is_greedy(self) -> bool:
        """Is the most probable token taken?"""
        return self.temperature == 0.0


GREEDY = SamplingParameters(temperature=0.0)
