"""`meshwright show` of a routing trace: a heat map of loads, affinity between layers, files of other programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.cli.running import Runner

from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_file import read_routing, save_routing
from meshwright.specs.routing.routing_trace import RoutingTrace


def made(folder: Path) -> Path:
    """A trace of two layers, whose first one sends everything to expert 2."""
    random = np.random.default_rng(0)
    experts = np.stack([np.full(64, 2), random.integers(4, size=64)], 1)[:, :, None]
    path = folder / "trace.npz"
    save_routing(RoutingTrace(experts, 4, (0, 3), source="tests"), path)
    return path


def test_loads_are_shades_and_affinities_a_table(run: Runner, tmp_path: Path) -> None:
    shown = run("show", str(made(tmp_path)))
    assert shown.code == 0
    assert "tests (recorded): 64 tokens, 2 layers of 4 experts, 1 a token" in shown.stdout
    assert "layer   0 |  █ |" in shown.stdout
    row = next(line.split() for line in shown.stdout.splitlines() if line.split()[:1] == ["0"])
    assert row[:5] == ["0", "2", "4.00", "3", "0.000"]  # one expert says nothing of the next


def test_json_has_loads(run: Runner, tmp_path: Path) -> None:
    data = run("show", made(tmp_path), "--json").data
    assert data["kind"] == "routing" and data["loads"][0] == [0, 0, 64, 0] and data["largest_load"] == 4.0


def test_it_is_written_as_others_write_it_and_drawn(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "drawn.npz"
    save_routing(markov_trace(50, 3, 5, 0.3, seed=1), path)
    for name in ("lines.jsonl", "array.npy"):
        assert run("show", str(path), "-o", str(tmp_path / name)).code == 0
        assert (read_routing(tmp_path / name).experts == read_routing(path).experts).all()
    page = tmp_path / "page.html"
    assert run("show", str(path), "-o", str(tmp_path / "map.svg"), "--report", str(page)).code == 0
    drawing = (tmp_path / "map.svg").read_text()
    assert drawing.count("<rect") == 1 + 3 * 5 and "layer 2, expert 4:" in drawing
    assert page.read_text().count("From layer") >= 2
