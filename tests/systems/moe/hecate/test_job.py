"""`Use:` on loads of one's own, and files that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.running import runner

from meshwright.specs.error import SpecError
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_file import save_routing
from meshwright.systems.moe.hecate.job import ExpertCopies, copies_of
from meshwright.systems.moe.hecate.mechanism import lognormal_loads


def test_loads_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savetxt(tmp_path / "loads.csv", lognormal_loads(3, 16, 1.0, 1), delimiter=",")
    found = runner(capsys)("run", f'hecate(loads="{tmp_path / "loads.csv"}", devices=4, overlap=2)', "--json")
    assert found.code == 0, found.stderr
    data = found.data
    report = data.get("report", data)
    spread = report["max_over_mean"]
    assert np.mean(spread["with_copies"]) < np.mean(spread["in_a_row"])
    assert report["num_copies"] == [2 * 3] * 3
    assert all(owner in holders for own, copies in zip(report["owners"], report["copies"], strict=True)
               for owner, holders in zip(own, copies, strict=True))  # fmt: skip


def test_a_routing_is_its_loads(tmp_path: Path) -> None:
    trace = markov_trace(200, 3, 8, 0.3, 0)
    save_routing(trace, tmp_path / "own.npz")
    np.savetxt(tmp_path / "loads.csv", trace.counts, delimiter=",")
    told = [
        copies_of(ExpertCopies(**given, devices=4), 0, None).data
        for given in ({"routing": str(tmp_path / "own.npz")}, {"loads": str(tmp_path / "loads.csv")})
    ]
    assert told[0] == told[1]
    with pytest.raises(SpecError, match="one of them"):
        copies_of(ExpertCopies(), 0, None)


@pytest.mark.parametrize("text", ["1,2\n3\n", "1,-2,3,4\n", "a,b\n", "0,0,0,0\n", ""])
def test_what_is_no_loads_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text(text)
    with pytest.raises(SpecError):
        copies_of(ExpertCopies(str(tmp_path / "loads.csv"), devices=2), 0, None)


def test_experts_divide(tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text("1,2,3,4\n")
    with pytest.raises(SpecError, match="as many"):
        copies_of(ExpertCopies(str(tmp_path / "loads.csv"), devices=3), 0, None)
