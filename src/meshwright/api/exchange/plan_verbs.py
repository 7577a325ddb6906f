"""What a plan does with the rooms above its own: files of other programs, and what its schedule says."""

from __future__ import annotations

import os
from typing import Any

from meshwright import catalog
from meshwright.api.exchange.exporting import export_plan
from meshwright.api.exchange.importing import import_plan
from meshwright.specs.plan.plan import Plan

__all__ = ["ApiVerbs", "Plan"]  # whoever takes Plan from here has its verbs


class ApiVerbs:
    """`Plan.verbs` of every plan of a process that imported this."""

    def export(self, plan: Plan, format: str, **given: Any) -> str:
        """The text of `export_plan`."""
        return export_plan(plan, format, **given).text

    def load(self, path: str | os.PathLike[str], format: str, **given: Any) -> Plan:
        """The plan of `import_plan`."""
        return import_plan(path, format, **given).plan

    def num_chunks(self, schedule: str) -> int:
        """As the schedule of that name says."""
        return catalog.find_schedule(schedule).num_chunks


Plan.verbs = ApiVerbs()
