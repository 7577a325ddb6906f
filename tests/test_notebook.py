"""The notebook walk runs from its first cell to its last, as it stands, and its outputs are not committed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright as mw

NOTEBOOK = Path(__file__).parents[1] / "docs" / "walk.ipynb"


@pytest.mark.slow
def test_the_walk_runs_as_it_stands(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code and not any(cell.get("outputs") for cell in cells)
    script = tmp_path / "walk.py"  # a schedule is pickled for nobody: processes import what stands in a file
    script.write_text(
        'if __name__ == "__main__":\n' + "\n".join(f"    {line}" for line in "\n\n".join(code).split("\n"))
    )
    env = {**os.environ, "PYTHONPATH": str(Path(mw.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "billion parameters on 16 devices" in done.stdout and "predicted" in done.stdout
