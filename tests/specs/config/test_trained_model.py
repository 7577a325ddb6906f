"""What was trained is planned for by its folder, as it is served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.specs.config.source import load_model
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec


def test_a_folder_of_checkpoints_is_the_model_of_its_latest(tmp_path: Path) -> None:
    """Or of the one that is named."""
    small, large = (ModelSpec.decoder(layers, 64, 4, max_sequence_length=32) for layers in (2, 3))
    for name, model in (("step-1", small), ("step-2", large)):
        (tmp_path / name).mkdir()
        index = {"info": {"training": {"model": model.to_dict()}}}
        (tmp_path / name / "checkpoint.json").write_text(json.dumps(index), encoding="utf-8")
    (tmp_path / "latest").write_text("step-2\n", encoding="utf-8")
    assert load_model(tmp_path) == load_model(tmp_path / "step-2") == large
    assert load_model(tmp_path / "step-1") == small
    (tmp_path / "step-2" / "checkpoint.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SpecError, match="says no model"):
        load_model(tmp_path)
    with pytest.raises(SpecError, match="Hugging Face model, or checkpoints"):
        load_model(tmp_path.parent)
