"""What `make gpu` needs beside PyTorch: wheels, collected where there is a network, installed where there is none.

Run: python benchmarks/gpu/wheels.py collect|install [--python-version 3.12]   (it imports nothing that is not in Python)
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent
WHEELS, SITE = CHECKOUT / "build" / "gpu" / "wheels", CHECKOUT / "build" / "gpu" / "site"
# Module -> distribution. Small ones, which any machine that trains may lack: together they stay below MOST_BYTES.
SMALL: Mapping[str, str] = {
    "tomli_w": "tomli-w", "filelock": "filelock", "typer": "typer", "click": "click", "shellingham": "shellingham",
    "annotated_doc": "annotated-doc", "rich": "rich", "markdown_it": "markdown-it-py", "mdurl": "mdurl",
    "pygments": "Pygments", "safetensors": "safetensors", "pytest": "pytest", "pytest_timeout": "pytest-timeout",
    "iniconfig": "iniconfig", "pluggy": "pluggy", "packaging": "packaging", "hypothesis": "hypothesis",
    "sortedcontainers": "sortedcontainers",
}  # fmt: skip
LARGE = ("torch", "numpy", "scipy", "numba")  # whose wheels are too large to carry: they have to be there
MOST_BYTES = 50e6
NOTHING_TO_DO = 2  # exit code of `install`
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def missing(modules: Sequence[str]) -> list[str]:
    """Those that this Python does not find."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def collect(python_version: str, folder: Path = WHEELS) -> int:
    """Download the wheels, in the versions that are tested together. Exit 1: they are too large, or cannot be had."""
    shutil.rmtree(folder, ignore_errors=True)
    places = [word for each in PLATFORMS for word in ("--platform", each)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp",
        "--python-version", python_version, *places, "-c", str(CHECKOUT / "constraints.txt"), "-d", str(folder),
        *SMALL.values(),
    ]  # fmt: skip
    if subprocess.run(command, check=False).returncode:
        return 1
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{size / 1e6:.1f} MB in {folder.relative_to(CHECKOUT)}, for Python {python_version}")
    return int(size > MOST_BYTES)


def install(folder: Path = WHEELS, site: Path = SITE) -> int:
    """Unpack what this Python lacks from the wheels. Exit 1: something is missing, which is named."""
    lacking = [SMALL[name] for name in missing(tuple(SMALL))]
    if lacking:
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade",
            "--find-links", str(folder), "--target", str(site), *lacking,
        ]  # fmt: skip
        if not folder.is_dir() or subprocess.run(command, check=False).returncode:
            print(
                f"{sys.executable} lacks {', '.join(lacking)}: collect them with `make gpu-wheels`, and carry {folder}"
            )
            return 1
    return 0


def has_gpu() -> bool:
    """Does the driver list a device?"""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def main(arguments: list[str] | None = None) -> int:
    """Exit 2 of `install`: there is nothing to do here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("collect", "install"))
    parser.add_argument("--python-version", default="3.12", help="of the machine with the device")
    given = parser.parse_args(arguments)
    if given.what == "collect":
        return collect(given.python_version)
    large = missing(LARGE)
    if not large:
        return install()
    print(
        f"{sys.executable} lacks {', '.join(large)}; choose one that has them: make gpu PYTHON=/path/to/python3"
    )
    if has_gpu():
        return 1
    print("the driver lists no GPU here, so there is nothing to do")
    return NOTHING_TO_DO


if __name__ == "__main__":
    sys.exit(main())
