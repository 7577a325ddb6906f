"""Four routing functions of what a router says of tokens: GShard's, X-MoE's, sigmoids, and experts that choose.

Shapes: T tokens, H hidden size, R routing dimension, X experts, K experts a token, C tokens an expert.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.expert.routing import gates_of
from meshwright.specs.error import SpecError
from meshwright.specs.model.block import Routing
from meshwright.systems.moe.fs_moe.routing_function import NOT_CAUSAL, ROUTINGS, TOP_TWO


class ChosenExperts(NamedTuple):
    """Of every token, the best first: numbers of experts [T, K], and gates [T, K] by which their results are multiplied."""

    gates_TK: Tensor
    experts_TK: Tensor


class ChosenTokens(NamedTuple):
    """Of every expert, the best first: numbers of tokens [X, C], and gates [X, C] by which their results are multiplied."""

    gates_XC: Tensor
    tokens_XC: Tensor


def gshard(logits_TX: Tensor, generator: torch.Generator | None = None) -> ChosenExperts:
    """The two best by a softmax, gates over their sum (Lepikhin et al. 2021, arXiv 2006.16668, algorithm 1).

    Args:
        generator: where there is one, the second is kept with a probability of twice its gate, at most 1, as there; what is
            not kept has a gate of zero. Without one both are kept.
    """
    gates_TK, experts_TK = _of_tokens(logits_TX, TOP_TWO, ROUTINGS["gshard"])
    if generator is not None:
        drawn_T = torch.rand(
            len(logits_TX), generator=generator, dtype=logits_TX.dtype, device=logits_TX.device
        )
        is_kept_T = 2 * gates_TK[:, 1].detach() > drawn_T
        gates_TK = torch.stack([gates_TK[:, 0], gates_TK[:, 1] * is_kept_T], 1)
    return ChosenExperts(gates_TK, experts_TK)


def sigmoid(logits_TX: Tensor, num_per_token: int) -> ChosenExperts:
    """The best logits, and a sigmoid of each as its gate (Lewis et al. 2021, arXiv 2103.16716). Raises SpecError where a
    token has more experts than there are."""
    return ChosenExperts(*_of_tokens(logits_TX, num_per_token, ROUTINGS["sigmoid"]))


def cosine_logits(
    hidden_TH: Tensor, projection_RH: Tensor, embeddings_XR: Tensor, temperature: Tensor | float
) -> Tensor:
    """Logits [T, X]: cosines between tokens, projected to few dimensions, and embeddings of experts, over a temperature that
    is learned (Chi et al. 2022, arXiv 2204.09179). Raises SpecError where shapes do not meet."""
    if hidden_TH.shape[-1] != projection_RH.shape[-1] or projection_RH.shape[0] != embeddings_XR.shape[-1]:
        shapes = [tuple(each.shape) for each in (hidden_TH, projection_RH, embeddings_XR)]
        raise SpecError(
            f"shapes {shapes}", allowed="[tokens, hidden], [dimensions, hidden], [experts, dimensions]"
        )
    projected_TR = F.normalize(F.linear(hidden_TH, projection_RH), dim=1)
    return F.linear(projected_TR, F.normalize(embeddings_XR, dim=1)) / temperature


def x_moe(
    hidden_TH: Tensor, projection_RH: Tensor, embeddings_XR: Tensor, temperature: Tensor | float, num_per_token: int
) -> ChosenExperts:  # fmt: skip
    """The best of a softmax of `cosine_logits`, and its values as gates. Raises SpecError as that, and as `sigmoid`."""
    logits_TX = cosine_logits(hidden_TH, projection_RH, embeddings_XR, temperature)
    return ChosenExperts(*_of_tokens(logits_TX, num_per_token, ROUTINGS["x_moe"]))


def chosen_per_expert(num_tokens: int, num_experts: int, factor: float) -> int:
    """C: `factor` experts a token on average, rounded up, and never more than there are tokens."""
    return min(num_tokens, math.ceil(factor * num_tokens / num_experts))


def expert_choice(logits_TX: Tensor, factor: float, *, is_causal: bool) -> ChosenTokens:
    """Every expert takes its C best tokens by a softmax over experts (Zhou et al. 2022, arXiv 2202.09368): loads are even,
    and a token may have all experts, or none.

    Args:
        factor: experts a token on average.
        is_causal: are tokens those of a decoder, which may not see what comes behind them?

    Raises SpecError for a decoder: whether an expert takes a token depends on tokens behind it.
    """
    if is_causal:
        raise SpecError("expert_choice in causal decoding", allowed=f"encoders: {NOT_CAUSAL}")
    num_tokens, num_experts = logits_TX.shape
    if not factor > 0:
        raise SpecError(f"{factor:g} experts a token on average", allowed="a number above 0")
    scores_XT = logits_TX.softmax(1).t()
    return ChosenTokens(*scores_XT.topk(chosen_per_expert(num_tokens, num_experts, factor), dim=1))


def combined(chosen: ChosenTokens, results_XCH: Tensor, num_tokens: int) -> Tensor:
    """[T, H]: results of experts that chose, by their gates, at their tokens; zeros where nobody chose."""
    weighed_XCH = results_XCH * chosen.gates_XC[..., None]
    empty_TH = results_XCH.new_zeros(num_tokens, results_XCH.shape[-1])
    return empty_TH.index_add(0, chosen.tokens_XC.flatten(), weighed_XCH.flatten(0, 1))


def _of_tokens(logits_TX: Tensor, num_per_token: int, routing: Routing) -> tuple[Tensor, Tensor]:
    if not 1 <= num_per_token <= logits_TX.shape[1]:
        raise SpecError(
            f"{num_per_token} of {logits_TX.shape[1]} experts a token", allowed="1 up to all experts"
        )
    return gates_of(logits_TX, num_per_token, routing, None, logits_TX.dtype)
