"""load_kernel_profile: the profiles of kernels that come with the package, fitted or borrowed, by the chip's name."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from meshwright.costs.kernel.borrowed import BORROWED_SCHEMA, borrowed_profile
from meshwright.costs.kernel.profile import KernelProfile
from meshwright.specs.error import SpecError

FITTED, BORROWED = ("a100", "h100", "b200"), ("mi300x", "mi355x")


@cache
def load_kernel_profile(name: str) -> KernelProfile:
    """A profile that comes with the package (FITTED, BORROWED). Raises SpecError where there is none."""
    if name not in (*FITTED, *BORROWED):
        raise SpecError(f"no kernel profile {name!r}", allowed=", ".join((*FITTED, *BORROWED)))
    path = resources.files("meshwright.costs") / "profiles" / f"{name}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.get("schema") == BORROWED_SCHEMA:
        return borrowed_profile(data, load_kernel_profile(data["lender"]))
    return KernelProfile.from_dict(data)
