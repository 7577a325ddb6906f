"""`held_bytes`: what PyTorch's caching allocator holds of a device for tensors of a peak: as a rule, and at most.

Tensors that stay for the whole run fill their segments. Those that come and go leave freed blocks that fit no later request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from meshwright.specs.plan.software import Segments

# Share of what PyTorch's allocator reserves that is in freed blocks which fit no request: 15 % on average over eight
# language models, 33 % in the worst (Guo et al., GMLake, arXiv 2401.08156), next to nothing where segments expand. Where
# nobody knows which, the estimate is half way.
WASTED_SHARE, MOST_WASTED_SHARE = 0.15, 0.33
MAX_FRAGMENTATION = 1.0 / (1.0 - WASTED_SHARE)
FRAGMENTATION = (1.0 + MAX_FRAGMENTATION) / 2
WORST_FRAGMENTATION = 1.0 / (1.0 - MOST_WASTED_SHARE)
# At most: of a reduction, and of a gather behind the step; neither fits the other's block.
NUM_FLAT_COPIES = 2
NARROW = "gradients before they are summed"
LASTING = ("parameters", "optimizer state", "gradients", "buckets of gradients", NARROW)


class Unused(NamedTuple):
    """Bytes that no tensor of the peak has: freed logits; what is given back late, as a rule and at most; one flat copy."""

    freed: float
    late: float
    most_late: float
    flat: float


def held_bytes(
    segments: Segments, holders: Mapping[str, float], most: Mapping[str, float], whole: float, unused: Unused
) -> tuple[float, float]:
    """Bytes as a rule, and at most.

    Args:
        holders, most: name -> bytes of tensors at the peak, expected and at most; `whole`: at most, beside these.
    """
    lasting, most_lasting = (sum(held.get(name, 0.0) for name in LASTING) for held in (holders, most))
    passing = sum(holders.values()) - lasting + unused.freed + unused.late
    bound = sum(most.values()) + whole + unused.freed
    flat, most_flat = unused.flat / 2, NUM_FLAT_COPIES * unused.flat  # half of it finds room as a rule
    if segments == "fixed":
        most_passing = bound - most_lasting + unused.most_late
        usual = lasting + MAX_FRAGMENTATION * passing + flat
        return usual, most_lasting + WORST_FRAGMENTATION * most_passing + most_flat
    most_held = MAX_FRAGMENTATION * (bound + unused.most_late)
    return lasting + FRAGMENTATION * passing + flat, most_held + most_flat
