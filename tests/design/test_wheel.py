"""The wheel holds every file of the package, data too, and asks for no torch unless the extra is named."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.design.source import CHECKOUT, PACKAGE


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout, built without network."""
    folder: Path = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    return zipfile.ZipFile(next(folder.glob("meshwright-*.whl")))


def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {f"meshwright/{path.relative_to(PACKAGE).as_posix()}" for path in files}
    assert expected <= set(wheel.namelist()), sorted(expected - set(wheel.namelist()))
    assert any(name.endswith(".json") for name in expected)


def test_only_the_extra_asks_for_torch(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
    required = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist") or []
    torch = [line for line in required if line.startswith(("torch", "transformers", "safetensors"))]
    assert torch and all("extra == 'torch'" in line for line in torch), torch


def test_the_licence_and_the_command_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/NOTICE") for name in names)
    entry = next(name for name in names if name.endswith("entry_points.txt"))
    assert "meshwright = meshwright.cli:main" in wheel.read(entry).decode()
