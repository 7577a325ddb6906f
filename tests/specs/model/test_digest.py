"""A digest follows what is computed, and stays what it was where a field that came later is as it always was."""

import dataclasses

from meshwright.specs import ModelSpec
from meshwright.specs.model.digest import ADDED_FIELDS


def test_digest_ignores_names_only():
    model = ModelSpec.decoder(4, 64, 4)
    assert model.digest == dataclasses.replace(model, name="other", source="x").digest
    for change in ({"num_layers": 5}, {"rope_theta": 1e6}, {"has_tied_embeddings": True}):
        assert dataclasses.replace(model, **change).digest != model.digest


def test_a_field_that_came_later_does_not_change_the_digest_of_what_lacks_it():
    model = ModelSpec.decoder(4, 64, 4)
    assert model.digest == "8eff451a0167a015"  # as in plan files of all schemas
    old = {key: value for key, value in model.to_dict().items() if key not in ADDED_FIELDS}
    assert ModelSpec.from_dict(old).digest == model.digest
    assert dataclasses.replace(model, sliding_window=4, sliding_layers=(0,)).digest != model.digest
