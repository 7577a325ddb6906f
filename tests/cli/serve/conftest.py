"""A model of bytes with random weights, as a folder, for every command that serves."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from tests.executor.serving.adapter_case import ALL, write_adapter
from tests.executor.serving.paged_case import SIZES, their_model


@pytest.fixture(scope="module")
def adapters(bytes_model: Path) -> tuple[Path, Path]:
    """A folder with the adapter "tuned" of this model in it, and the model with it in its matrices."""
    root, merged = bytes_model.parent / "adapters", bytes_model.parent / "merged"
    root.mkdir()
    model = transformers.AutoModelForCausalLM.from_pretrained(bytes_model)
    write_adapter(model, root / "tuned", ALL, 4, 7).save_pretrained(merged)
    return root, merged


@pytest.fixture(scope="module")
def bytes_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "bytes"
    their_model({"model_type": "llama", **SIZES, "vocab_size": 256}, folder)
    return folder
