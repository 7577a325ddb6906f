"""What is sent of a token that goes once to each device, or node, that has any of its experts (deepseek-ai/DeepEP)."""

from __future__ import annotations


def sent_share(num_targets: int, num_chosen: int) -> float:
    """Of a token's k copies, one for each of its experts, the part that is sent where one goes to each of n targets that has
    any: n (1 - (1 - 1 / n)^k) / k are expected where all are as likely (DeepEP's `is_token_in_rank`)."""
    return num_targets * (1 - (1 - 1 / num_targets) ** num_chosen) / num_chosen
