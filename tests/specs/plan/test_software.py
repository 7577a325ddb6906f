"""Software classes: by name and by default, shares by variant before kind, and shares that follow from counted bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.specs.error import UnknownNameError
from meshwright.specs.operator import Operator, OperatorKind, Phase
from meshwright.specs.plan.sharding import ZERO
from meshwright.specs.plan.software import (
    CLASSES,
    DEFAULT_CLASS,
    SHARDED_DEFAULT_CLASS,
    SoftwareClass,
    software_class,
)


def operator(kind: OperatorKind, phase: Phase = "forward") -> Operator:
    return Operator(kind, 1.0, 1.0, (1,), phase=phase)


def test_classes_are_found_by_their_own_names() -> None:
    assert all(software_class(name) is each and each.name == name for name, each in CLASSES.items())
    assert len(CLASSES) >= 4 and all(each.meaning for each in CLASSES.values())


@pytest.mark.parametrize(
    ("sharding", "name"),
    [
        ("none", DEFAULT_CLASS),
        ("zero1", DEFAULT_CLASS),
        ("zero2", DEFAULT_CLASS),
        ("zero3", SHARDED_DEFAULT_CLASS),
    ],
)
def test_what_a_plan_does_not_name_follows_from_its_sharding(sharding: str, name: str) -> None:
    assert software_class("", gathers_values=ZERO[sharding].divides_values).name == name
    assert software_class("eager", gathers_values=ZERO[sharding].divides_values).name == "eager", (
        "a name is a name"
    )


def test_an_unknown_class_is_refused_with_what_is_near() -> None:
    with pytest.raises(UnknownNameError, match="software class named 'eagre'.*did you mean eager") as told:
        software_class("eagre")
    assert set(told.value.known) == set(CLASSES)


def test_a_share_is_of_the_variant_before_the_kind_and_one_without_either() -> None:
    software = SoftwareClass("ours", "", {"norm": 0.5, "norm_backward": 0.25})
    assert software.share(operator("norm")) == 0.5
    assert software.share(operator("norm", "backward")) == 0.25
    assert software.share(operator("loss", "backward")) == 1.0
    assert SoftwareClass("ours", "", {"norm": 0.5}).share(operator("norm", "backward")) == 0.5


def test_shares_of_gated_activations_are_touches_left_of_touches_counted() -> None:
    for name in ("fused", "compiled"):
        assert CLASSES[name].share(operator("activation")) == pytest.approx(3 / 5)
        assert CLASSES[name].share(operator("activation", "backward")) == pytest.approx(5 / 9, abs=0.01)
        assert CLASSES[name].share(operator("elementwise")) == pytest.approx(2 / 3, abs=0.01)
    for name in ("eager", "eager, fused loss"):
        assert CLASSES[name].share(operator("activation")) == 1.0


def test_the_loss_moves_least_in_one_kernel_and_most_in_copies_to_float32() -> None:
    """Bytes for one logit: 4 forward and 8 backward are counted."""

    def loss_bytes(name: str) -> tuple[float, float]:
        software = CLASSES[name]
        return 4 * software.share(operator("loss")), 8 * software.share(operator("loss", "backward"))

    assert loss_bytes("eager, fused loss") == (2, 4)
    assert loss_bytes("compiled") == loss_bytes("fused") == (6, 8)
    assert loss_bytes("eager") == (14, 14)
    assert loss_bytes("fused, stepwise loss") == (6 + 4 + 8 + 8 + 4 + 8, 8 + 6)


@pytest.mark.parametrize(
    ("name", "is_native", "is_eager"),
    [
        ("fused", True, False),
        ("fused, stepwise loss", True, False),
        ("compiled", False, False),
        ("eager", False, True),
        ("eager, fused loss", False, True),
    ],
)
def test_pytorchs_own_attention_is_portable_and_only_eager_blocks_are_not_fused(
    name: str, is_native: bool, is_eager: bool
) -> None:
    each = CLASSES[name]
    assert (each.has_native_attention, each.fuses_blocks) == (is_native, not is_eager)
    assert each.stops_early is not is_native, "torch.utils.checkpoint stops early, Megatron's own does not"


def test_a_captured_step_is_a_fused_one_that_waits_for_no_host() -> None:
    fused, captured = CLASSES["fused"], CLASSES["captured"]
    assert fused.waits_for_routing and not captured.waits_for_routing
    assert captured.gap_share < fused.gap_share == 1.0
    same = {
        name: getattr(fused, name)
        for name in ("name", "meaning", "gap_share", "step_share", "waits_for_routing")
    }
    assert replace(captured, **same) == fused


def test_a_loss_is_in_place_only_where_it_is_one_kernel() -> None:
    in_place = {name for name, each in CLASSES.items() if each.has_loss_in_place}
    assert "eager, fused loss" in in_place and all(CLASSES[name].fuses_loss for name in in_place)


def test_products_and_attention_are_nobodys_to_share() -> None:
    for each in CLASSES.values():
        assert each.share(operator("matmul")) == each.share(operator("attention")) == 1.0
        assert 0 < each.gap_share <= 1 and 0 < each.cast_share <= 1


def test_classes_are_keys() -> None:
    assert len({each: name for name, each in CLASSES.items()}) == len(CLASSES)
