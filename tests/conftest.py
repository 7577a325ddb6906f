"""What every test shares: hypothesis profiles, the `slow` marker, shared data, and a blocked network."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch or a hub client: one thread a process (two cores are shared), no downloads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import pytest

from tests import covering, gloo_pool
from tests.no_network import block_network

CHECKOUT = Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile("local", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "local")
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption(
        "--redraw-looks", action="store_true", help="draw what tests/workbench/looks compares with anew"
    )
    parser.addoption("--soak-seconds", type=float, default=20.0, help="how long the soak of a server takes")


def pytest_configure(config: pytest.Config) -> None:
    """Slow tests are tried where --slow asks for them, or a mark expression names the marker."""
    if not getattr(config.option, "numprocesses", None):  # a process that tests, not one that has others test
        import meshwright.api  # noqa: F401  plans know their verbs in whatever order tests run
        import meshwright.serving.openvino  # noqa: F401  before a test imports the runtime, which would then tell its makers
    covering.SLOW_ARE_TRIED["slow"] = bool(
        config.getoption("--slow") or "slow" in (config.getoption("markexpr") or "")
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files are tried from both ends of what `tests.spread` says; other ways to distribute tests are xdist's."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.spread import FromBothEnds

    return FromBothEnds(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect slow tests unless they were asked for."""
    if covering.SLOW_ARE_TRIED["slow"]:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_sessionstart() -> None:
    """What is collected lives until the end: looking through it for garbage again and again takes minutes."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is collected, of what the tests make."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def bytecode_is_kept() -> Iterator[None]:
    """Processes that tests start keep what they compiled, also where the environment says not to.

    A worker that compiles the package again takes 4.7 seconds of processor time to start, one that finds it compiled 2.0.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def jobs_end() -> Iterator[None]:
    """The jobs that a file's tests run on the shared pool leave nothing in its workers."""
    yield
    gloo_pool.assert_idle()


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Root of the checkout the tests run in."""
    return CHECKOUT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of published measurements beside the checkout; tests that need it are skipped without it."""
    folder = CHECKOUT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the tables of measurements are not beside the checkout ({folder} is not a folder)")
    return folder


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the test, connecting to or looking up anything but this machine raises NetworkUsedError."""
    block_network(monkeypatch.setattr)
