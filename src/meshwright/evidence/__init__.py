"""Evidence: predicted beside measured, and the claims of published systems recomputed."""

from meshwright.evidence.claim.claim import Claim, ClaimResult, claims_of
from meshwright.evidence.claim.reproduce import reproduce
from meshwright.evidence.claim.system_card import SystemCard, systems
from meshwright.evidence.compare import Comparison, NameRow, compare

__all__ = [
    "Claim",
    "Comparison",
    "NameRow",
    "ClaimResult",
    "SystemCard",
    "claims_of",
    "compare",
    "reproduce",
    "systems",
]
