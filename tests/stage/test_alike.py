"""What is said of one of several stages that are alike is what each of them says itself."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import product

import pytest
from tests.planned_case import MODELS, Planned

from meshwright.specs.error import PlanError
from meshwright.stage.alike import first_alike, of_alike
from meshwright.stage.exchange.inner import inner_exchanges
from meshwright.stage.group.value_size import (
    num_local_parameters,
    num_partial_parameters,
    num_trained_parameters,
)
from meshwright.stage.operator.stage import PASSES
from meshwright.stage.piece import piece_layers
from meshwright.stage.saved.size import (
    kept_bytes_per_token,
    local_pending_bytes_per_token,
    remade_bytes_per_token,
)
from meshwright.stage.stage_pass import pass_operators
from meshwright.stage.work import microbatch_shape

SAID = (
    num_local_parameters,
    num_trained_parameters,
    num_partial_parameters,
    kept_bytes_per_token,
    local_pending_bytes_per_token,
    remade_bytes_per_token,
)
CHOICES = (
    {"pp": 2},
    {"pp": 2, "tp": 2, "recompute": "selective"},
    {"pp": 2, "recompute": "full", "recompute_blocks": (1, 2)},
    {"pp": 2, "vocabulary": "two_barriers"},
    {"schedule": "interleaved_1f1b", "pp": 2, "num_chunks": 2, "tp": 2, "sequence_parallel": True},
)


def _plans(model):
    """The plans that the model can have; all have the first."""
    yield Planned(model, choices=CHOICES[0]).plan()
    for choices in CHOICES[1:]:
        with suppress(PlanError):
            yield Planned(model, choices=choices).plan()


@pytest.mark.parametrize("model", MODELS)
def test_stages_that_are_alike_say_the_same(model):
    for plan in _plans(model):
        stages = piece_layers(plan.stages(), [max(1, each.num_blocks) for each in plan.stages()])
        for function in SAID:
            found = of_alike(plan, stages, partial(function, plan))
            assert found == tuple(function(plan, layers) for layers in stages), function.__name__
        shape = microbatch_shape(plan)
        for name, function in product(PASSES, (pass_operators, inner_exchanges)):
            for layers, number in zip(stages, first_alike(plan, stages), strict=True):
                assert function(plan, layers, name, shape) == function(plan, stages[number], name, shape)


def test_of_a_deep_model_few_stages_are_looked_at():
    plan = Planned("deep", choices={"pp": 2}).plan()
    stages = piece_layers(plan.stages(), (4, 4))
    assert first_alike(plan, stages) == (0, 1, 1, 3, 4, 1, 1, 7)
