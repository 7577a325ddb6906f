"""The step profile: round trips and refusals, what the package's holds, and the ends of widths."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest

from meshwright.costs.step.profile import (
    LEAST_DEVIATION,
    STEP_PROFILE_SCHEMA,
    StepFit,
    StepProfile,
    Width,
    packaged_step_profile,
)
from meshwright.costs.step.step_costs import StepConstants
from meshwright.specs.error import SpecError, UnknownNameError

FIT = StepFit(
    {"h100": StepConstants(matmul=1.25, gap_s=1.5e-5)}, Width({"float8": 0.05, "messages": 0.2}, -1.0, 1.5)
)
OTHER = StepFit({"h100": StepConstants(matmul=1.5)}, Width({"messages": 0.3}))
PROFILE = StepProfile(
    FIT, {"ours": OTHER}, {"H100": {"most_devices": 8, "float8": True, "experts": False}}, "ours",
    {"theirs": Width({"messages": 0.4})},
)  # fmt: skip


def test_a_profile_survives_its_file() -> None:
    assert StepProfile.from_dict(json.loads(json.dumps(PROFILE.to_dict()))) == PROFILE


def test_a_file_holds_five_digits() -> None:
    fit = StepFit({"h100": StepConstants(matmul=1.23456789)}, Width({"run": 0.123456789}))
    table = StepProfile(fit, {}, {}).to_dict()
    assert (
        table["fit"]["constants"]["h100"]["matmul"] == 1.2346
        and table["fit"]["width"]["spreads"]["run"] == 0.12346
    )


@pytest.mark.parametrize("schema", [None, 0, STEP_PROFILE_SCHEMA + 1, str(STEP_PROFILE_SCHEMA)])
def test_another_schema_is_refused(schema: object) -> None:
    with pytest.raises(SpecError, match=f"schema {STEP_PROFILE_SCHEMA}"):
        StepProfile.from_dict({**PROFILE.to_dict(), "schema": schema})


def test_constants_that_cannot_be_are_refused_in_a_file_too() -> None:
    table = PROFILE.to_dict()
    table["fit"]["constants"]["h100"]["stream"] = -1.0
    with pytest.raises(SpecError, match="stream"):
        StepProfile.from_dict(table)


def test_a_source_is_left_out_by_name() -> None:
    assert PROFILE.without("") is FIT and PROFILE.without("ours") is OTHER
    with pytest.raises(UnknownNameError, match="source of measured steps.*ourz.*did you mean ours"):
        PROFILE.without("ourz")
    with pytest.raises(UnknownNameError, match="family of chips"):
        FIT.of("abacus")


def test_what_is_known_without_a_source_is_without_its_part_in_constants_or_widths() -> None:
    assert PROFILE.blind_to("ours") is OTHER and PROFILE.blind_to("nobody") == FIT
    assert PROFILE.blind_to("theirs") == StepFit(FIT.constants, Width({"messages": 0.4}))


def test_the_packaged_profile_has_every_family_in_every_fit() -> None:
    profile = packaged_step_profile()
    fits = [profile.fit, *profile.left_out.values()]
    assert len(profile.left_out) > 1 and profile.source
    assert all(set(fit.constants) == {"a100", "h100", "b200"} for fit in fits)
    assert len({json.dumps(StepProfile(fit, {}, {}).to_dict()) for fit in fits}) == len(fits), (
        "each is its own"
    )
    assert all(set(each) == {"most_devices", "float8", "experts"} for each in profile.seen.values())


def test_rows_of_tables_are_not_in_the_package() -> None:
    """Constants and widths only: constants for each family, spreads and two ends for each fit."""
    table = packaged_step_profile().to_dict()
    assert set(table) == {"schema", "source", "seen", "fit", "left_out", "widths"}
    for fit in (table["fit"], *table["left_out"].values()):
        assert set(fit) == {"constants", "width"} and set(fit["width"]) == {"spreads", "low", "high"}
        assert all(set(each) == {f.name for f in fields(StepConstants)} for each in fit["constants"].values())


# ------------------------------------------------------------------------------------------ widths


def test_kinds_of_work_are_off_independently_by_their_shares() -> None:
    width = Width({"products": 0.1, "messages": 0.5}, -1.0, 2.0)
    shares = {"products": 0.6, "messages": 0.16, "unheard of": 9.0}
    assert width.deviation(shares) == pytest.approx(0.1), "3-4-5: 0.06 and 0.08"
    assert width.ends(shares) == pytest.approx((math.exp(-0.1), math.exp(0.2)))


def test_a_run_repeats_to_two_per_cent_at_best() -> None:
    assert Width({}).deviation({"products": 1.0}) == LEAST_DEVIATION


@pytest.mark.parametrize("wrong", [{"low": 0.0}, {"high": -0.1}, {"spreads": {"run": -0.1}}])
def test_a_width_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="low below 0"):
        Width(**{"spreads": {"run": 0.1}, **wrong})  # type: ignore[arg-type]
