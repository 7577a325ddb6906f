"""`patched_job`: a user's own file with the change to the best plan written into it, and read again."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.api.plans.todays_plan import Todays
from meshwright.interop.exported import Exported, canonical
from meshwright.interop.patched import PatchError, patched
from meshwright.interop.plan_difference import OptionChange
from meshwright.specs.error import MeshwrightError
from meshwright.specs.plan.plan import Plan


def patched_job(
    now: Todays, best: Plan, changes: Sequence[OptionChange], exported: Exported | None
) -> tuple[str, str]:
    """The file, and why there is none: one of them is empty.

    What the file says afterwards is read as it was read before; where that is another plan, nobody gets the file.
    """
    if exported is None or not now.text:
        return "", ""
    try:
        text = patched(now.text, changes, now.target, exported.text)
        found = now.read(text)
    except PatchError as error:
        return "", str(error)
    except MeshwrightError as error:
        return "", f"with the change in it, the file is not understood: {error}"
    # The vocabulary is padded to the tensor-parallel degree: of the model, only what the file says is compared.
    if canonical(found.changed(model=best.model)) != canonical(best):
        return "", "with the change in it, the file would say another plan: something in it decides otherwise"
    return text, ""
