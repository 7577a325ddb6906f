"""Faults of programs that plans are lowered to: `verify` refuses each, or what the outputs are made of stays the same."""

from __future__ import annotations

import re
from itertools import islice
from random import Random
from typing import Any

import pytest

import meshwright.api  # noqa: F401  # how many chunks a schedule has is asked above specs
import meshwright.ir.judge.verify as verify_module
from meshwright.ir import Program
from meshwright.specs.plan.plan import PassOption
from tests.conformance.mutant import accepted, mutations, pairs
from tests.lowering.plans import DENSE, EXPERTS, TIED, lowered, plan

LOW = "low_bandwidth_partitioning(values=2, gradients=4)"
NUM_PAIRS = 40


def passes(*names: str) -> dict[str, Any]:
    return {"passes": tuple(map(PassOption, names))}


CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "zero1": {"sharding": "zero1"},
    "zero2": {"sharding": "zero2"},
    "zero3": {"sharding": "zero3"},
    "low bandwidth": {"dp": 8, "sharding": LOW},
    "zero1 cp tp": {"cp": 2, "tp": 2, "sharding": "zero1"},
    "zero1 clipped": {"sharding": "zero1", **passes("clip_gradients")},
    "zero3 clipped, tied": {"model": TIED, "sharding": "zero3", **passes("clip_gradients")},
    "post validation": passes("clip_gradients", "post_validation"),
    "canonical": {"sharding": "zero1", **passes("canonical_reduction")},
    "offload": passes("offload_optimizer"),
    "tied": {"model": TIED},
    "tied zero1": {"model": TIED, "sharding": "zero1"},
    "experts zero1": {"model": EXPERTS, "dp": 4, "ep": 2, "sharding": "zero1"},
    "experts zero3": {"model": EXPERTS, "dp": 4, "ep": 2, "sharding": "zero3"},
    "one barrier": {"vocabulary": "one_barrier", "sharding": "zero1"},
    "two barriers": {"vocabulary": "two_barriers"},
    "interlaced": {"vocabulary": "interlaced"},
    "one barrier, two chunks": {"vocabulary": "one_barrier", "schedule": "interleaved_1f1b", "dp": 1},
    "one barrier, zbv": {"vocabulary": "one_barrier", "schedule": "zbv", "sharding": "zero2"},
    "two barriers, zbv": {"vocabulary": "two_barriers", "schedule": "zbv"},
    "zb_h1 zero2": {"schedule": "zb_h1", "sharding": "zero2"},
    "split backward, recompute": {"split_backward": True, "recompute": "full"},
    "dualpipe zero1": {"schedule": "dualpipe", "sharding": "zero1"},
}
# What the others have among them, too: with the slow tests.
LONG = (
    *(
        "zero1 clipped",
        "zero3 clipped, tied",
        "offload",
        "tied zero1",
        "experts zero3",
        "interlaced",
        "one barrier, zbv",
        "one barrier, two chunks",
    ),
    *("two barriers, zbv", "zb_h1 zero2", "dualpipe zero1"),
)
EVERY = [pytest.param(case, marks=[pytest.mark.slow] * (case in LONG)) for case in CASES]


def program_of(case: str) -> Program:
    """Two stages or four, as many microbatches as the schedule takes, few."""
    choices = {"pp": 2, "dp": 2, "model": DENSE, **CASES[case]}
    microbatches = 4 if "schedule" in choices else 2
    return lowered(plan(choices.pop("model"), batch=microbatches * choices["dp"], **choices))


@pytest.mark.parametrize("case", EVERY)
def test_no_single_fault_is_accepted_that_changes_an_output(case: str) -> None:
    program = program_of(case)
    num, found = accepted(program, mutations(program))
    assert num > program.num_rows
    assert not found


@pytest.mark.parametrize("case", EVERY)
def test_no_double_fault_is_accepted_that_changes_an_output(case: str) -> None:
    program = program_of(case)
    num, found = accepted(program, islice(pairs(Random(case), program, NUM_PAIRS), 2 * NUM_PAIRS))
    assert num > NUM_PAIRS
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_thousand_double_faults(case: str) -> None:
    program = program_of(case)
    _, found = accepted(program, pairs(Random(f"{case} again"), program, 500))
    assert not found


@pytest.mark.parametrize(
    "case, check, words",
    [
        ("zero1", "check_layouts", "GATHER_PARAM"),
        ("none", "check_layouts", "STEP reads weight_gradient for reduced_gradient"),
        pytest.param(
            "one barrier, two chunks", "check_duties", "without 0(T|SCATTER)", marks=pytest.mark.slow
        ),
        ("two barriers", "check_layouts", "T reads softmax for normalizer"),
        ("zero2", "check_duties", "without 0SCATTER_GRAD"),
    ],
)
def test_without_its_check_a_fault_is_accepted(
    case: str, check: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second judge sees what each check refuses."""
    program = program_of(case)
    faults = [each for each in mutations(program) if re.search(words, each[0])]
    monkeypatch.setattr(verify_module, check, lambda _: None)
    _, found = accepted(program, iter(faults))
    assert found
