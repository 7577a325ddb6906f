"""Branches as a program: legal, one all-reduce forwards, seconds and idle share as the formulas; the slope is two."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.evidence.claim.system_card import system
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.text import from_text, to_text
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.systems.architecture.shallow_again import card as shallow
from meshwright.systems.architecture.shallow_again.mechanism import branch_step, deep_forward, shallow_forward


def test_claims_that_need_no_processes_hold() -> None:
    card = system("shallow_again")
    assert "2309.08414" in card.paper and card.is_simulated and card.is_executed
    own = [claim for claim in card.claims if ":" not in claim.by]
    failed = [c.claim for c in own if not c.judge(getattr(shallow, c.by)(**c.arguments)).passed]
    assert not failed and sum(claim.is_evidence for claim in own) == 2


@pytest.mark.parametrize(
    "program",
    [
        branch_step(6, 2, 2),
        branch_step(5, 3),
        branch_step(2, 1),
        shallow_forward(5, 2),
        deep_forward(4, 2),
    ],
    ids=repr,
)
def test_programs_are_legal(program: Program) -> None:
    for host in ("asynchronous", "in_order"):
        verify(program, host)
    assert from_text(to_text(program)).digest() == program.digest()


@pytest.mark.parametrize("num_branches", [3, 6, 7])
def test_a_step_exchanges_twice_a_microbatch_whatever_its_depth(num_branches: int) -> None:
    program = branch_step(num_branches, 3, 4)
    for device in range(3):
        rows = [row for row in program.instructions(device) if row.kind == Kind.COLLECTIVE]
        assert len(rows) == 2 * 4


def test_uneven_branches_wait_for_the_fullest_device() -> None:
    # 7 branches on 3 devices: one has three of them
    assert shallow.forward_s("shallow", 7, 3, 1.0, 0.25) == pytest.approx(3.25)
    assert shallow.forward_s("deep", 7, 3, 1.0, 0.25) == pytest.approx(7 * (1 / 3 + 0.25))


def test_a_slope_is_that_of_its_power() -> None:
    scales = np.logspace(-3, 0, 7)
    assert shallow.fitted_slope(scales, 5 * scales**1.5) == pytest.approx(1.5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="2 branches on 3 devices"):
        branch_step(2, 3)
    for call in (lambda: shallow.num_all_reduces("broad", 2, 1), lambda: shallow.slope("relu")):
        with pytest.raises(UnknownNameError):
            call()
