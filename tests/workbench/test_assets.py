"""The page's script and style are those that `make web` built from the sources beside them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.conftest import CHECKOUT

ASSETS = CHECKOUT / "src" / "meshwright" / "workbench" / "assets"
MOST_SCRIPT_BYTES = 140_000
INPUTS = ("build.mjs", "package.json", "package-lock.json", "tsconfig.json", "src")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sources() -> list[Path]:
    below = (CHECKOUT / "web" / name for name in INPUTS)
    return sorted(
        each for path in below for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file()
    )


@pytest.fixture(scope="module")
def recorded() -> dict[str, str]:
    found: dict[str, str] = json.loads((ASSETS / "sources.json").read_text())
    return found


def test_what_was_built_is_of_these_sources(recorded: dict[str, str]) -> None:
    found = {path.relative_to(CHECKOUT).as_posix(): digest(path) for path in sources()}
    built = {name: digest(ASSETS / name) for name in ("app.css", "app.js")}
    assert recorded == found | built, "web/ and what was built of it differ; run: make web, and commit both"


def test_the_script_is_small_and_takes_nothing_from_elsewhere() -> None:
    script, style = (ASSETS / "app.js").read_text("ascii"), (ASSETS / "app.css").read_text("ascii")
    assert len(script) <= MOST_SCRIPT_BYTES
    assert "eval(" not in script and "new Function" not in script
    ours = "".join(path.read_text() for path in sources() if path.suffix in (".ts", ".tsx"))
    assert "innerHTML" not in ours and "InnerHTML" not in ours, "text that comes from elsewhere is text"
    assert "@import" not in style and "url(" not in style
