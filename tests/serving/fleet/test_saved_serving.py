"""Files of plans that serve: what is written is read again, and mistakes are told by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.serving.fleet.saved_serving import SavedServing, is_serving_plan
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.specs.error import PlanError, UnknownNameError

SAVED = SavedServing(
    "llama-3.1-8b", "2x8xH100", "float8",
    ServingPlan(ReplicaLayout(4, 2, 4), 2, 512, 64, num_prefill=1, router="prefix_aware", block_tokens=32),
)  # fmt: skip


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    SAVED.save(path)
    assert SavedServing.load(path) == SAVED and is_serving_plan(path)
    path.write_text("tp = 2\n")
    assert not is_serving_plan(path) and not is_serving_plan(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tp = 4", 'tp = "4"', "a whole number"),
        ("replicas", "replica", "replicas"),
        ("schema = 1", "schema = 2", "schema 2"),
        ('router = "prefix_aware"', 'router = "prefix"', "prefix_aware"),
        ("num_prefill = 1", "num_prefill = 2", "of which 2 prefill"),
        ('dtype = "float8"\n', "", "dtype"),
    ],
)
def test_mistakes_are_told_by_name(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "plan.toml"
    SAVED.save(path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises((PlanError, UnknownNameError), match=words):
        SavedServing.load(path)
