"""What is above a bound is refused by whoever makes it, in one message, before it takes time or memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshwright.interop.launch.shell_script import ShellScript
from meshwright.ir.text import from_text
from meshwright.schedules import registered
from meshwright.specs import Cluster, ModelSpec, Workload
from meshwright.specs.bound.bound import MOST_COMPUTED, check_most
from meshwright.specs.error import MeshwrightError, PlanError, SpecError

ASKED: dict[str, Callable[[], object]] = {
    "devices": lambda: Cluster("9999999xH100"),
    "layers": lambda: ModelSpec.decoder(1_000_000, 64, 2),
    "dimension": lambda: ModelSpec.decoder(2, 1 << 50, 2),
    "batch": lambda: Workload(1 << 40, 16),
    "tokens": lambda: Workload(1, 1 << 40),
    "stages": lambda: registered()["1f1b"].orders(40_000, 1),
    "cells": lambda: registered()["1f1b"].orders(1000, 10_000),
    "microbatches": lambda: from_text("meshwright-program 1   axes pp=1   microbatches 9999999\n0: 0F0\n"),
    "expansion": lambda: ShellScript.read("A=" + "x" * 4096 + "\n" + "A=$A$A\n" * 40),
}


@pytest.mark.parametrize("what", ASKED)
def test_more_than_anybody_needs_is_refused(what: str) -> None:
    with pytest.raises(
        MeshwrightError, match=r": [\d,]+; allowed: up to [\d,]+; take fewer, or correct the number"
    ):
        ASKED[what]()


def test_numbers_of_any_length_are_told_in_a_few_words() -> None:
    check_most("stages", 3, 3)
    with pytest.raises(SpecError, match="stages: 4; allowed: up to 3"):
        check_most("stages", 4, 3)
    with pytest.raises(PlanError, match="stages: more than 64 bits hold"):
        check_most("stages", 10**5000, MOST_COMPUTED, PlanError)
