"""The house: small folders, a class name once, own modules imported where a file begins, and the law in one text."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import PurePosixPath

import pytest

from tests.design.source import CHECKOUT, FunctionNode, SourceFile, dotted, package_files, parse

MAX_FILES = 12
# Their verbs are quick to start because what a command does not need is not loaded.
LAZY_ROOMS = ("cli", "api", "catalog")
# What is imported late elsewhere, and why: (file, module).
LATE = {
    ("executor/job/worker.py", "meshwright.executor.training.saved_job"): "torch's checkpoints: 0.7 s a process",
    ("executor/models/weights/initialisation.py", "meshwright.executor.models.weights.hugging_face"): "safetensors",
    (
        "executor/serving/served_model.py", "meshwright.executor.serving.source.stored_source"
    ): "torch's checkpoints: a second of each rank's start",
    ("schedules/searched/pipeline.py", "meshwright.schedules.searched.zero_bubble_kernel"): "numba: 0.5 s",
    ("schedules/searched/zero_bubble_search.py", "meshwright.schedules.searched.zero_bubble_kernel"): "numba",
    ("schedules/searched/zero_bubble_search.py", "meshwright.schedules.searched.zero_bubble_rules"): "numba",
}  # fmt: skip
# Who may import by a name that is computed: the public names, what is found by name, a job's handlers, a user's modules.
BY_NAME = (
    "__init__.py",
    "catalog.py",
    "cli/app.py",
    "executor/models/sequential.py",
    "evidence/claim/reproduce.py",
)
# Folders in which no parameter is Any (but autograd's own ctx).
TYPED = ("executor/rank", "executor/training", "executor/handlers")
IMPORTERS = {"import_module", "__import__", "spec_from_file_location"}

Finding = tuple[str, str]


def place(file: SourceFile) -> PurePosixPath:
    """Where a file is, from the package's folder."""
    return PurePosixPath(file.path).relative_to("src/meshwright")


def crowded_folders(files: Iterable[SourceFile]) -> Iterator[Finding]:
    """Folders with more than `MAX_FILES` files beside their __init__."""
    held = Counter(str(place(file).parent) for file in files if place(file).name != "__init__.py")
    yield from (
        (folder, f"{count} files: a folder inside it is missing")
        for folder, count in held.items()
        if count > MAX_FILES
    )


def repeated_classes(files: Iterable[SourceFile]) -> Iterator[Finding]:
    """Classes of one name in two files; those inside functions and classes are nobody else's."""
    found = defaultdict(list)
    for file in files:
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(place(file)))
    yield from ((name, f"in {', '.join(paths)}") for name, paths in found.items() if len(paths) > 1)


def imported(node: ast.AST) -> list[str]:
    """Own modules that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    else:
        return []
    return [name for name in names if name.split(".")[0] == "meshwright"]


@cache
def late_imports(file: SourceFile) -> set[tuple[str, str]]:
    """Own modules that a file imports inside functions: (file, module)."""
    functions = (node for node in file.nodes if isinstance(node, FunctionNode))
    return {
        (str(place(file)), name)
        for function in functions
        for node in ast.walk(function)
        for name in imported(node)
    }


def hidden_imports(files: Iterable[SourceFile]) -> Iterator[Finding]:
    """Own modules imported inside functions where nothing asks for it, and imports by a computed name."""
    for file in files:
        is_lazy = file.room in LAZY_ROOMS or place(file).name == "__init__.py"
        yield from (() if is_lazy else sorted(late_imports(file) - set(LATE)))
        for node in file.nodes:
            if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in IMPORTERS:
                if file.room != "catalog" and str(place(file)) not in BY_NAME:
                    yield str(place(file)), f"line {node.lineno} imports by name"


def law_told_twice(files: Iterable[SourceFile]) -> Iterator[Finding]:
    """Paragraphs of the law, by their bold heads, that stand in the package's own text too."""
    heads = re.findall(r"^\*\*([^*]+)\*\*", law(), re.MULTILINE)
    for file in files:
        yield from ((str(place(file)), head) for head in heads if f"**{head}**" in file.text)


def law() -> str:
    """The section of docs/design.md that says what a program is."""
    text = (CHECKOUT / "docs" / "design.md").read_text()
    return text.split("\n## The program, exactly\n")[1].split("\n## ")[0]


def untyped_parameters(files: Iterable[SourceFile]) -> Iterator[Finding]:
    """Parameters of `Any` where the runtime hands values on: what a rank and a training are given has a type."""
    for file in files:
        if str(place(file).parent) not in TYPED:
            continue
        for node in file.nodes:
            if isinstance(node, ast.arg) and node.annotation is not None and node.arg != "ctx":
                if ast.unparse(node.annotation) == "Any":
                    yield str(place(file)), f"line {node.lineno}: {node.arg}: Any"


RULES = (untyped_parameters, crowded_folders, repeated_classes, hidden_imports, law_told_twice)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(rule) -> None:
    found = [f"{where}: {what}" for where, what in rule(package_files())]
    assert not found, "\n".join(found)


def file(path: str, text: str = "x = 1") -> SourceFile:
    return parse(text, f"src/meshwright/{path}")


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        (crowded_folders, [file(f"ir/number_{index}.py") for index in range(13)]),
        (repeated_classes, [file("ir/a.py", "class Row: ..."), file("costs/b.py", "class Row: ...")]),
        (hidden_imports, [file("ir/a.py", "def f():\n    from meshwright.ir.b import c")]),
        (hidden_imports, [file("specs/a.py", "class A:\n    def f(self):\n        import meshwright")]),
        (hidden_imports, [file("specs/a.py", "value = import_module('meshwright').plan")]),
        (hidden_imports, [file("specs/a.py", "value = importlib.import_module(name)")]),
        (untyped_parameters, [file("executor/rank/a.py", "def f(context: Any) -> None: ...")]),
        (law_told_twice, [file("ir/__init__.py", '"""Law.\n\n**Start rule.** An instruction is issued."""')]),
    ],
)
def test_an_offence_against_the_house_is_noticed(rule, files) -> None:
    assert list(rule(files))


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        (crowded_folders, [file(f"ir/number_{index}.py") for index in range(12)] + [file("ir/__init__.py")]),
        (
            repeated_classes,
            [file("ir/a.py", "def f():\n    class Row: ..."), file("ir/b.py", "class Row: ...")],
        ),
        (untyped_parameters, [file("executor/rank/a.py", "def f(inputs: Sequence[Any]) -> Any: ...")]),
        (hidden_imports, [file("cli/a.py", "def f():\n    from meshwright.ir.b import c")]),
        (
            hidden_imports,
            [file("ir/a.py", "def f():\n    import numba"), file("ir/b.py", "import meshwright.ir.a")],
        ),
    ],
)
def test_what_the_house_allows_is_accepted(rule, files) -> None:
    assert list(rule(files)) == []


def test_every_late_import_that_is_explained_is_still_there() -> None:
    found = {each for file in package_files() for each in late_imports(file)}
    assert set(LATE) <= found, set(LATE) - found


def test_the_room_of_programs_says_where_the_law_is() -> None:
    import meshwright.ir

    assert 'docs/design.md, "The program, exactly"' in (meshwright.ir.__doc__ or "")
    assert "**Start rule.**" in law() and "**Values.**" in law()
