"""What dispatch and combine of tokens to experts take within an NVLink domain, by kernels that send each token once a member.

A token goes to the `topk` experts its router chose; it is sent once to each member that has any of them. With E experts
spread evenly over n members and uniform routing a member gets it with probability 1 - C(E - E/n, k) / C(E, k). The
kernel copies all those bytes with a few processors (SMs), and those for other members go over NVLink:

    seconds = start + max(all bytes / (SMs * rate of one SM), remote bytes / rate of the links)

softened to the p-norm of the two, because both limits are near each other where kernels are tuned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.error import SpecError

NORM_POWER = 4  # of the soft maximum: at the corner it is 19 % above the hard one


@dataclass(frozen=True, slots=True)
class ExpertCurve:
    """Constants of one kernel (dispatch or combine) on one chip.

    Attributes:
        start_s: launch, handshake of counts and the barrier at the end.
        sm_bytes_per_s: bytes that one streaming multiprocessor moves.
        link_bytes_per_s: rate of a member's links for this traffic in one direction.
        bytes_per_value: of a token on the wire: 1 for float8 dispatch, 2 for bfloat16 combine.
    """

    start_s: float
    sm_bytes_per_s: float
    link_bytes_per_s: float
    bytes_per_value: float

    def seconds(
        self, num_tokens: int, width: int, topk: int, num_experts: int, num_members: int, num_sms: int
    ) -> float:
        """Seconds for `num_tokens` tokens of each member, with `width` values each. Raises SpecError."""
        if num_sms < 1:
            raise SpecError(f"{num_sms} streaming multiprocessors send", allowed="at least one")
        reached = num_members * member_probability(topk, num_experts, num_members)
        all_bytes = num_tokens * width * self.bytes_per_value * reached
        remote_bytes = all_bytes * (num_members - 1) / num_members
        by_sm = all_bytes / (num_sms * self.sm_bytes_per_s)
        by_link = remote_bytes / self.link_bytes_per_s
        return self.start_s + float((by_sm**NORM_POWER + by_link**NORM_POWER) ** (1 / NORM_POWER))


def member_probability(topk: int, num_experts: int, num_members: int) -> float:
    """Probability that a given member has at least one of a token's experts, all choices equally likely.

    Raises SpecError unless 1 <= topk <= num_experts and the experts divide over the members.
    """
    if not 1 <= topk <= num_experts or num_experts % num_members:
        raise SpecError(
            f"{topk} of {num_experts} experts on {num_members} members",
            allowed="topk from 1 to the experts, and experts that divide over the members",
        )
    elsewhere = num_experts - num_experts // num_members
    return 1.0 - math.comb(elsewhere, topk) / math.comb(num_experts, topk)
