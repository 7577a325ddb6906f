"""What a planner decides itself is not fixed by who asks: refused in the same words by all planners of this family."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from meshwright.specs.error import PlanError


def check_open(fix: Mapping[str, Any], decided: Collection[str]) -> None:
    """Raises PlanError naming the fields that are fixed though the planner decides them."""
    taken = [name for name in decided if name in fix]
    if taken:
        raise PlanError(f"{', '.join(taken)} is decided here", allowed="other fields of a plan")
