"""What is sent of a token that goes once to each device, or node, that has any of its experts (deepseek-ai/DeepEP)."""

from __future__ import annotations

from math import comb


def sent_share(num_targets: int, num_chosen: int) -> float:
    """Of a token's k copies, one for each of its experts, the part that is sent where one goes to each of n targets that has
    any: n (1 - (1 - 1 / n)^k) / k are expected where experts are many, and all as likely (DeepEP's `is_token_in_rank`)."""
    return num_targets * (1 - (1 - 1 / num_targets) ** num_chosen) / num_chosen


def reached_targets(num_targets: int, num_chosen: int, num_experts: int) -> float:
    """To how many of n targets with X / n experts each a token is expected to go whose k experts are different ones, all as
    likely: n (1 - C(X - X / n, k) / C(X, k))."""
    elsewhere = num_experts - num_experts // num_targets
    return num_targets * (1 - comb(elsewhere, num_chosen) / comb(num_experts, num_chosen))
