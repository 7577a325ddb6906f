"""A model of bytes with random weights, as a folder, for every command that serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.executor.serving.paged_case import SIZES, their_model


@pytest.fixture(scope="module")
def bytes_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "bytes"
    their_model({"model_type": "llama", **SIZES, "vocab_size": 256}, folder)
    return folder
