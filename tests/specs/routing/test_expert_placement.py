"""A placement is of a model's layers with experts, of as many as they have, on the devices of its plan's groups."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.routing.expert_placement import ExpertPlacement

DENSE = ModelSpec.decoder(3, 32, 4, max_sequence_length=8)
MODEL = DENSE.changed(
    architecture="qwen2_moe", num_experts=4, num_experts_per_token=2, expert_intermediate_size=24, dense_layers=(1,),
)  # fmt: skip
ORDER = np.array([[2, 0, 3, 1], [1, 2, 3, 0]])


def test_every_layer_has_its_own_slots() -> None:
    found = ExpertPlacement(ORDER, 2, (0, 2)).slots_in(MODEL, 2)
    assert found == ((2, 0, 3, 1), (), (1, 2, 3, 0))


@pytest.mark.parametrize(
    ("placement", "model", "num_devices", "said", "allowed"),
    [
        (ExpertPlacement(ORDER, 2, (0, 2)), MODEL, 4, "4 experts of 2 layers on 2 devices", "on 4 devices"),
        (ExpertPlacement(ORDER, 2, (0, 1)), MODEL, 2, "4 experts of 2 layers", "of the 2 layers"),
        (ExpertPlacement(ORDER[:1], 2, (0,)), MODEL, 2, "4 experts of 1 layers", "of the 2 layers"),
        (
            ExpertPlacement(np.tile(np.arange(6), (2, 1)), 2, (0, 2)), MODEL, 2, "6 experts of 2 layers", "of 4 experts",
        ),
        (
            ExpertPlacement(np.tile([0, 1, 2, 3, 0, 1], (2, 1)), 2, (0, 2)), MODEL, 2, "2 copies of experts",
            "without copies",
        ),
        (ExpertPlacement(ORDER, 1, (0, 2)), MODEL, 1, "with ep 1", "divides experts"),
        (ExpertPlacement(ORDER, 2, (0, 2)), DENSE, 2, "which has none", "divides experts"),
    ],
)  # fmt: skip
def test_others_are_refused(
    placement: ExpertPlacement, model: ModelSpec, num_devices: int, said: str, allowed: str
) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        placement.slots_in(model, num_devices)
    assert allowed in str(caught.value.allowed) and caught.value.next
