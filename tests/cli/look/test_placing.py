"""`meshwright place`: tables and pictures of placements, of all tokens together or step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.running import Runner

from meshwright.api.subjects.placing import PlacedExperts
from meshwright.cli.look.placing_view import names_apart, undominated
from meshwright.specs.routing.expert_placement import ExpertPlacement
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_file import save_routing
from meshwright.specs.routing.routing_trace import RoutingTrace, TraceRun

PLACEMENT = ExpertPlacement(np.arange(4)[None], 2, (0,))


@pytest.fixture
def routes(tmp_path: Path) -> Path:
    """Drawn tokens, as of four steps."""
    drawn = markov_trace(4_000, 4, 8, 0.3, seed=2)
    runs = tuple(TraceRun(step, 0, 1_000) for step in (0, 10, 20, 30))
    path = tmp_path / "routes.npz"
    save_routing(RoutingTrace(drawn.experts, 8, drawn.layers, runs, drawn.source, drawn.origin), path)
    return path


def test_a_trade_off_is_drawn(run: Runner, routes: Path, tmp_path: Path) -> None:
    by = ("ex_flow", "ex_flow(load_weight=1)", "contiguous", "eplb(copies=4)")
    words = [word for name in by for word in ("--by", name)]
    found = run("place", routes, "--devices", 4, *words, "-o", tmp_path / "trade.svg", "--json")
    assert found.code == 0, found.stderr
    rows = found.data["placements"]
    assert rows[0]["moved"] < rows[1]["moved"] and rows[0]["imbalance"] > rows[1]["imbalance"]
    assert rows[3]["moved"] is None and rows[3]["moved_by_loads"] is None
    drawing = (tmp_path / "trade.svg").read_text()
    assert drawing.count("<circle") == 3 and "contiguous" in drawing and "eplb" not in drawing
    only = run("place", routes, "--devices", 4, "--by", "eplb(copies=4)", "-o", tmp_path / "none.svg")
    assert only.code == 2 and "without" in only.stderr


def test_affinity_is_told_and_drawn_step_by_step(run: Runner, routes: Path, tmp_path: Path) -> None:
    words = ("place", routes, "--devices", 4, "--by", "ex_flow", "--by", "round_robin", "--by-steps")
    shown = run(*words, 2, "-o", tmp_path / "growth.svg")
    assert shown.code == 0, shown.stderr
    assert "0 to 10" in shown.stdout and "20 to 30" in shown.stdout
    drawing = (tmp_path / "growth.svg").read_text()
    assert drawing.count("<path") == 4 and "by chance" in drawing
    data = run(*words, 1, "--json").data
    assert [(each["first"], each["num_fitted"]) for each in data["steps"]] == [
        (0, 500),
        (10, 500),
        (20, 500),
        (30, 500),
    ]
    alone = run(*words, 4, "-o", tmp_path / "alone.svg")
    assert alone.code == 0 and (tmp_path / "alone.svg").read_text().count("<circle") == 4  # and in the legend


def test_what_cannot_be_is_refused(run: Runner, routes: Path, tmp_path: Path) -> None:
    words = ("place", routes, "--devices", 4, "--by", "ex_flow")
    many = run(*words, "--by-steps", 5)
    assert many.code == 2 and "from 1 to 4" in many.stderr
    several = run(*words, "--by-steps", 1, "-o", tmp_path / "x.experts.json")
    assert several.code == 2 and ".svg" in several.stderr and "Traceback" not in several.stderr


def placed(name: str, moved: float, imbalance: float) -> PlacedExperts:
    return PlacedExperts(name, PLACEMENT, moved, moved, moved, moved, imbalance)


def test_the_line_joins_what_no_other_beats_and_names_cover_no_other() -> None:
    rows = [placed("a", 0.2, 3.0), placed("b", 0.21, 2.99), placed("c", 0.5, 1.5), placed("d", 0.6, 2.0)]
    assert [each.name for each in undominated(rows)] == ["a", "b", "c"]
    assert names_apart([placed("a long name", 0.2, 3.0), *rows[1:]]) == ["a long name", "", "c", "d"]
