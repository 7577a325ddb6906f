"""Import direction holds, its contracts notice offences, and starting loads neither torch nor numba."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.design.source import CHECKOUT, PACKAGE, SourceFile, module_level_imports, package_files, parse

LINTER = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
# Lints the folder of each line that it reads, in a process of its own: the linter is loaded once for all.
LINTERS = """
import os, sys
from importlinter.cli import lint_imports
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.chdir(line.strip())
        sys.path.insert(0, os.path.abspath("src"))
        with open("said", "w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        code = lint_imports(no_cache=True)
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
HEAVY = ("torch", "numba", "transformers", "scipy", "llvmlite")
Lint = Callable[[Path], tuple[int, str]]
ROOMS = (
    "cli workbench api evidence catalog systems planner executor prediction serving workflow simulator costs "
    "machines lowering stage schedules ir specs reports interop"
).split()


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that imports meshwright from this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_imports_follow_the_direction_of_the_rooms() -> None:
    result = run_python(LINTER)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_folder_with_code_is_a_package() -> None:
    folders = {(CHECKOUT / file.path).parent for file in package_files()}
    bare = [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()]
    assert not bare, f"without __init__.py the import contracts do not see them: {bare}"


@pytest.fixture
def empty_rooms(tmp_path: Path) -> Path:
    """A package of the same rooms without content, under the same contracts."""
    for room in ROOMS:
        folder = tmp_path / "src" / "meshwright" / room
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (tmp_path / "src" / "meshwright" / "__init__.py").touch()
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def lint() -> Iterator[Lint]:
    """Lints a folder as `lint-imports` does there: its exit code and what it says."""
    command = [sys.executable, "-c", LINTERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as linters:
        assert linters.stdin and linters.stdout
        to, answers = linters.stdin, linters.stdout

        def linted(folder: Path) -> tuple[int, str]:
            to.write(f"{folder}\n")
            to.flush()
            return int(answers.readline()), (folder / "said").read_text()

        yield linted
        to.close()


@pytest.mark.parametrize(
    ("room", "statement"),
    [
        ("ir", "import meshwright.simulator"),
        ("specs", "import meshwright.ir"),
        ("lowering", "import meshwright.costs"),
        ("simulator", "import meshwright.executor"),
        ("costs", "import meshwright.systems"),
        ("executor", "import meshwright.costs"),
        ("executor", "import meshwright.simulator"),
        ("executor", "import meshwright.planner"),
        ("planner", "import meshwright.executor"),
        ("reports", "import meshwright.schedules"),
        ("reports", "import meshwright.interop"),
        ("interop", "import meshwright.lowering"),
        ("specs", "import torch"),
        ("systems", "def late():\n    from torch import nn"),
        ("api", "import transformers"),
        ("leftovers", "import meshwright.specs"),
    ],
)
def test_an_offence_against_the_direction_is_noticed(
    lint: Lint, empty_rooms: Path, room: str, statement: str
) -> None:
    folder = empty_rooms / "src" / "meshwright" / room
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(statement + "\n")
    code, said = lint(empty_rooms)
    assert code != 0 and "BROKEN" in said, said


@pytest.mark.parametrize(
    ("room", "statement"),
    [
        ("executor.rank", "import meshwright.executor.job"),
        (
            "specs.model",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import meshwright.specs.plan",
        ),
        ("cli.frame", "def late():\n    from meshwright.cli.look import offence"),
        ("ir.hall", "x = 1"),
    ],
)
def test_an_offence_inside_a_room_is_noticed(
    lint: Lint, empty_rooms: Path, room: str, statement: str
) -> None:
    """An arrow back up between rooms of a room, for types and in functions too, and a room that no order names."""
    for name in (room, "executor.job", "specs.plan", "cli.look"):
        folder = empty_rooms / "src" / "meshwright" / Path(*name.split("."))
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
        (folder / "offence.py").write_text(statement + "\n" if name == room else "")
    code, said = lint(empty_rooms)
    assert code != 0 and f"Inside {room.split('.')[0]} BROKEN" in said, said


@pytest.mark.parametrize(
    ("room", "statement"),
    [
        ("executor", "import torch, meshwright.serving, meshwright.lowering"),
        ("reports", "import meshwright.ir, meshwright.specs"),
        ("planner", "import meshwright.simulator"),
    ],
)
def test_what_the_direction_allows_is_accepted(
    lint: Lint, empty_rooms: Path, room: str, statement: str
) -> None:
    (empty_rooms / "src" / "meshwright" / room / "__init__.py").write_text(statement + "\n")
    code, said = lint(empty_rooms)
    assert code == 0, said


def late_only(file: SourceFile) -> list[str]:
    """Modules that must be imported late and are imported when the file is."""
    names = (name for _, name in module_level_imports(file))
    return [name for name in names if name.split(".")[0] in ("numba", "llvmlite")]


def test_numba_is_imported_only_inside_functions() -> None:
    found = [f"{file.path}: {name}" for file in package_files() for name in late_only(file)]
    assert not found, "numba takes long to load: import it inside the function that compiles\n" + "\n".join(
        found
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("import numba", 1),
        ("try:\n    from numba import njit\nexcept ImportError:\n    njit = None", 1),
        ("class A:\n    import numba.core", 1),
        ("def compiled():\n    import numba", 0),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numba", 0),
    ],
)
def test_a_module_level_import_of_numba_is_noticed(text: str, number: int) -> None:
    assert len(late_only(parse(text))) == number


def loaded_after(code: str) -> list[str]:
    """Which heavy modules a fresh interpreter has loaded after running code."""
    report = f"import sys; print('LOADED', *(name for name in {HEAVY!r} if name in sys.modules))"
    result = run_python(f"{code}\n{report}")
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1].split()[1:]


def test_importing_meshwright_loads_nothing_heavy() -> None:
    assert loaded_after("import meshwright") == []
    assert loaded_after("import numba") != []


def has_command_line() -> bool:
    """Whether the room `cli` is in the tree."""
    return (PACKAGE / "cli").is_dir() or (PACKAGE / "cli.py").is_file()


@pytest.mark.skipif(not has_command_line(), reason="the room cli is not in this tree")
def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom meshwright.cli import main\nsys.argv = ['meshwright', '--help']\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code, done.code"
    )
    assert loaded_after(code) == []


def test_version_of_the_package_and_of_the_project_agree() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    result = run_python("import meshwright; print(meshwright.__version__)")
    assert result.stdout.strip() == project["version"], result.stderr
