"""Evidence: predicted beside measured, and the claims of published systems recomputed."""

from meshwright.evidence.claim import Claim, Result, claims_of
from meshwright.evidence.compare import Comparison, NameRow, compare
from meshwright.evidence.reproduce import reproduce
from meshwright.evidence.system_card import SystemCard, systems

__all__ = [
    "Claim",
    "Comparison",
    "NameRow",
    "Result",
    "SystemCard",
    "claims_of",
    "compare",
    "reproduce",
    "systems",
]
