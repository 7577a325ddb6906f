"""What `make gpu` lacks is named, and it tells a machine without a device from one without PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu import wheels


def test_what_is_not_there_is_missing() -> None:
    assert wheels.missing(("json", "no_such_module_of_ours")) == ["no_such_module_of_ours"]


def test_with_everything_there_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "SMALL", {"json": "json"})
    assert wheels.install(tmp_path / "none", tmp_path / "site") == 0
    assert not (tmp_path / "site").exists()


def test_without_wheels_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheels, "SMALL", {"no_such_module_of_ours": "a-package"})
    assert wheels.install(tmp_path / "none", tmp_path / "site") == 1
    said = capsys.readouterr().out
    assert "a-package" in said and "make gpu-wheels" in said


@pytest.mark.parametrize(("listed", "code"), [(False, wheels.NOTHING_TO_DO), (True, 1)])
def test_without_pytorch_a_machine_with_a_device_has_failed(
    listed: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheels, "LARGE", ("no_such_module_of_ours",))
    monkeypatch.setattr(wheels, "has_gpu", lambda: listed)
    assert wheels.main(["install"]) == code
    assert "PYTHON=" in capsys.readouterr().out
