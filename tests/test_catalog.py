"""The catalog: what there is by name, a user's own file, entry points, and near matches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meshwright import catalog
from meshwright.lowering import Recompute
from meshwright.schedules.order import Compute, Schedule
from meshwright.specs.error import ScheduleError, SpecError, UnknownNameError

WAVE = (
    "def wave(p, m):\n"
    '    """Everything forward, then everything back."""\n'
    "    return [[f'F{k}' for k in range(m)] + [f'B{k}' for k in range(m)] for _ in range(p)]\n"
)


@pytest.fixture
def mine(tmp_path: Path) -> Callable[[str], str]:
    """Writes a user's file and returns its path."""

    def write(text: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_kind_has_names_in_order(kind: str) -> None:
    names = catalog.names(kind)
    assert list(names) == sorted(names)
    assert names or kind in catalog.SLOT_KINDS  # a slot that only users and systems fill


def test_an_unknown_kind_or_name_lists_near_matches() -> None:
    for call, near in (
        (lambda: catalog.names("schedule"), "schedules"),
        (lambda: catalog.find_schedule("interleaved"), "interleaved_1f1b"),
        (lambda: catalog.find_pass("recomput"), "recompute"),
    ):
        with pytest.raises(UnknownNameError) as caught:
            call()
        assert near in caught.value.near


def test_every_schedule_of_the_package_is_found() -> None:
    for name in ("gpipe", "1f1b", "interleaved_1f1b", "zb_h1"):
        assert catalog.find_schedule(name).name == name
    made = catalog.find_schedule("1f1b")
    assert catalog.find_schedule(made) is made


def test_a_function_in_a_users_file_is_a_schedule(mine: Callable[[str], str]) -> None:
    path = mine(WAVE)
    for reference in (f"{path}:wave", path):
        found = catalog.find_schedule(reference)
        assert found.num_chunks == 1 and found.summary.startswith("Everything")
        assert found.orders(2, 1) == [[Compute("F", d, 0), Compute("B", d, 0)] for d in range(2)]


@pytest.mark.parametrize(("signature", "chunks"), [("p, m", 1), ("p, m, v", 2), ("p, m, v=3", 3)])
def test_chunks_are_read_from_the_signature(mine: Callable[[str], str], signature: str, chunks: int) -> None:
    found = catalog.find_schedule(mine(f"def f({signature}):\n    return [[] for _ in range(p)]\n") + ":f")
    assert found.num_chunks == chunks


def test_a_decorated_function_keeps_what_the_decorator_says(mine: Callable[[str], str]) -> None:
    words = "'test_wave', splits_backward=True, device_step=2, num_copies=2"
    text = f"from meshwright import schedule\n\n\n@schedule({words})\n{WAVE}"
    found = catalog.find_schedule(mine(text) + ":wave")
    assert found.name == "test_wave" and found.splits_backward
    assert (found.device_step, found.num_copies) == (2, 2)
    assert "test_wave" not in catalog.names("schedules")  # it lives in that file, not in the package


def test_a_file_may_define_dataclasses_and_is_private(mine: Callable[[str], str]) -> None:
    text = f"from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n{WAVE}"
    catalog.find_schedule(mine(text) + ":wave")
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def wave(p, m):\n    return 1 / 0\n", "line 2: ZeroDivisionError"),
        ("import not_there_at_all\n", "ModuleNotFoundError"),
        ("def wave(p, m)\n", "line 1: SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit"),
    ],
)
def test_what_goes_wrong_in_a_users_file_is_told_with_its_line(
    mine: Callable[[str], str], text: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        catalog.find_schedule(mine(text) + ":wave").orders(2, 2)


def test_what_is_not_there_is_told(mine: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no file"):
        catalog.find_schedule(str(tmp_path / "none.py:wave"))
    with pytest.raises(UnknownNameError, match="wave"):
        catalog.find_schedule(mine(WAVE) + ":wav")
    two = mine(WAVE + "\n\ndef other(p, m):\n    return []\n", "two.py")
    with pytest.raises(UnknownNameError, match="FUNCTION"):
        catalog.find_schedule(two)


def test_a_schedule_that_returns_no_order_is_refused(mine: Callable[[str], str]) -> None:
    for body, message in (("return []", "0 lists"), ("return [['X?'], []]", "no compute")):
        found = catalog.find_schedule(mine(f"def f(p, m):\n    {body}\n", f"f{len(body)}.py") + ":f")
        with pytest.raises(ScheduleError, match=message):
            found.orders(2, 1)


@dataclass(frozen=True)
class Point:
    """An entry point as importlib gives it."""

    name: str
    made: Any

    def load(self) -> Any:
        """What it names."""
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


def test_installed_packages_offer_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Schedule("ready", lambda p, m: [[] for _ in range(p)])
    offered = {
        "ready": Point("ready", ready),
        "bare": Point("bare", lambda p, m, v: [[] for _ in range(p)]),
        "broken": Point("broken", ImportError("no such module")),
        "number": Point("number", 3),
    }
    monkeypatch.setattr("meshwright.catalog.listing.offered", lambda slot: offered)
    assert {"ready", "bare", "1f1b"} <= set(catalog.names("schedules"))
    assert catalog.find_schedule("ready") is ready
    assert catalog.find_schedule("bare").num_chunks == 2
    for name in ("broken", "number"):
        with pytest.raises(SpecError):
            catalog.find_schedule(name)


def test_entry_points_are_read_from_their_group() -> None:
    code = (
        "import importlib.metadata as m; asked = []\n"
        "m.entry_points = lambda **group: asked.append(group) or ()\n"
        "from meshwright import catalog; catalog.names('schedules'); print(asked)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[{'group': 'meshwright.schedules'}]", result.stderr


def test_passes_are_made_with_their_options() -> None:
    assert catalog.find_pass("recompute", stages=(0,)) == Recompute((0,))
    with pytest.raises(SpecError, match="stages"):
        catalog.find_pass("recompute", layers=1)
    for name in catalog.names("passes"):
        assert catalog.pass_summary(name)
