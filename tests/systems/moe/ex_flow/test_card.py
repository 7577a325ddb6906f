"""ExFlow's card: the recorded trace is as it says, and the command that it names works on a trace of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import runner

from meshwright.specs.routing.expert_placement import ExpertPlacement
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_file import save_routing
from meshwright.systems.moe.ex_flow.card import communication_saved, saved
from meshwright.systems.moe.published_routing import RECORDED, recorded


def test_the_recorded_trace_is_small_and_of_documents() -> None:
    fitted, others = recorded()
    assert (fitted.num_layers, fitted.num_experts, fitted.origin) == (8, 16, "recorded")
    assert not set(fitted.steps) & set(others.steps)
    file = Path(__file__).parents[4] / "src/meshwright/systems/moe" / RECORDED
    assert file.stat().st_size < 300_000


def test_moves_that_are_saved_are_a_share_and_one_all_to_all_saves_half_of_the_rest() -> None:
    share = saved(4, "any")
    assert 0 < share < 1 and communication_saved(4) == 1 - (1 - share) / 2


def test_it_places_experts_of_a_trace_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = runner(capsys)
    path, out = tmp_path / "routes.npz", tmp_path / "experts.experts.json"
    save_routing(markov_trace(1_000, 6, 8, 0.3, seed=5), path)
    data = run(
        "place",
        path,
        "--devices",
        4,
        "--nodes",
        2,
        "--by",
        "ex_flow",
        "--by",
        "contiguous",
        "-o",
        out,
        "--json",
    ).data
    ours, before = data["placements"]
    assert (
        ours["moved"] < before["moved"]
        and ours["moved_nodes"] < before["moved_nodes"]
        and data["origin"] == "drawn"
    )
    assert ExpertPlacement.load(out).num_devices == 4
