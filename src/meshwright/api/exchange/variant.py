"""Asking for another model made of a model: the slot `plan.variant`, for commands that take a model or a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.api.subjects.loading import load
from meshwright.specs.error import SpecError
from meshwright.specs.option import option
from meshwright.specs.plan.plan import Plan


@dataclass(frozen=True)
class ModelVariant:
    """What makes another model of the one that is given, by its reference; empty: nothing does."""

    variant: str = option(
        "",
        "Of another model made of it: fs_moe(gate=sigmoid), ladder_residual, shallow_again, or ./mine.py:NAME.",
    )

    def refuse(self, beside: str) -> None:
        """Raises SpecError where it is asked for beside something that knows its own model."""
        if self.variant:
            raise SpecError(f"--variant {self.variant} beside {beside}", allowed="one of them")

    def in_fix(self, fix: Mapping[str, Any] | None) -> dict[str, Any]:
        """What a search has decided, with it. Raises SpecError where another variant is fixed."""
        found = dict(fix or {})
        if self.variant and found.setdefault("variant", self.variant) != self.variant:
            raise SpecError(
                f"--variant {self.variant}, and --fix variant={found['variant']}", allowed="one of them"
            )
        return found

    def of_plan(self, plan: str | os.PathLike[str] | Plan) -> Plan:
        """The plan for that model. Raises SpecError where the file is no plan's, PlanError as `Plan.as_variant`."""
        made = plan if isinstance(plan, Plan) else load(plan)
        if not isinstance(made, Plan):
            raise SpecError(f"{plan} is no plan", allowed="the file of one (.toml): it says its model")
        return made.as_variant(self.variant) if self.variant else made
