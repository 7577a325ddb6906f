"""How a folder says that its texts become vectors, and what of that is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.serving.stored.pooling import Pooling, pooling_of
from meshwright.specs.error import SpecError

LAST = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}


def write_pooling(folder: Path, settings: Any, *kinds: str) -> None:
    """The files of sentence-transformers."""
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else "",
         "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def test_the_last_token_in_either_generation_of_the_files(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) is None
    write_pooling(tmp_path, LAST, "Transformer", "Pooling", "Normalize")
    assert pooling_of(tmp_path) == Pooling(True)
    write_pooling(tmp_path, {"pooling_mode": "lasttoken"}, "Transformer", "Pooling")
    assert pooling_of(tmp_path) == Pooling(False)


@pytest.mark.parametrize(
    ("settings", "kinds", "words"),
    [
        ({"pooling_mode_mean_tokens": True}, ("Transformer", "Pooling"), "pooled by mean_tokens"),
        ({**LAST, "pooling_mode_cls_token": True}, ("Transformer", "Pooling"), "lasttoken, cls_token"),
        ({}, ("Transformer", "Pooling"), "by nothing"),
        ([], ("Transformer", "Pooling"), "by nothing"),
        (LAST, ("Transformer", "Pooling", "Dense"), "Dense"),
        (LAST, ("Transformer",), "has Transformer"),
    ],
)
def test_other_ways_are_refused_by_their_names(
    tmp_path: Path, settings: Any, kinds: tuple[str, ...], words: str
) -> None:
    write_pooling(tmp_path, settings, *kinds)
    with pytest.raises(SpecError, match=words):
        pooling_of(tmp_path)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    for text in ("{", "{}", "[3]"):
        (tmp_path / "modules.json").write_text(text)
        with pytest.raises(SpecError):
            pooling_of(tmp_path)
