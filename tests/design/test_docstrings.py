"""Every file says what it is for; what is public in the core rooms has a docstring and types."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.design.source import CORE_ROOMS, FunctionNode, SourceFile, package_files, parse, python_files


def file_offence(file: SourceFile) -> str | None:
    """What is wrong with the first line of a file, if anything."""
    docstring = ast.get_docstring(file.tree)
    if not docstring:
        return "no docstring: its first line says what the file is for"
    first = docstring.splitlines()[0]
    if len(first.split()) < 3:
        return f"the first line says too little: {first!r}"
    if not isinstance(file.tree.body[0], ast.Expr) or file.tree.body[0].lineno != 1:
        return "the docstring is not the first line of the file"
    return None


def public_nodes(file: SourceFile) -> Iterator[FunctionNode | ast.ClassDef]:
    """Functions and classes of a file whose names do not start with an underscore."""
    for node in file.tree.body:
        if isinstance(node, FunctionNode | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def is_untyped(function: FunctionNode) -> bool:
    """Whether the result or an argument other than self and cls has no annotation."""
    spec = function.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *filter(None, (spec.vararg, spec.kwarg))]
    bare = [arg for arg in named if arg.annotation is None and arg.arg not in ("self", "cls")]
    return bool(bare) or function.returns is None


def surface_offences(file: SourceFile) -> list[str]:
    """Public functions and classes without a docstring, and public functions and methods without types."""
    found = []
    for node in public_nodes(file):
        if not ast.get_docstring(node):
            found.append(f"{file.path}:{node.lineno} {node.name} has no docstring")
        methods = node.body if isinstance(node, ast.ClassDef) else [node]
        for method in methods:
            if isinstance(method, FunctionNode) and is_untyped(method):
                found.append(f"{file.path}:{method.lineno} {method.name} is not fully typed")
    return found


def test_every_file_says_what_it_is_for() -> None:
    files = python_files("src", "tests", "benchmarks")
    found = [f"{file.path}: {offence}" for file in files if (offence := file_offence(file))]
    assert not found, "\n".join(found)


def test_the_public_surface_of_the_core_is_documented_and_typed() -> None:
    core = [file for file in package_files() if file.room in CORE_ROOMS]
    found = [offence for file in core for offence in surface_offences(file)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["x = 1", '"""Two words."""', "x = 1\n'''Not the first statement here.'''", ""]
)
def test_a_file_that_does_not_say_what_it_is_for_is_noticed(text: str) -> None:
    assert file_offence(parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: int) -> int:\n    return x",
        "def f(x) -> int:\n    '''Doc.'''\n    return x",
        "def f(x: int):\n    '''Doc.'''\n    return x",
        "def f(*x) -> int:\n    '''Doc.'''\n    return x",
        "class A:\n    x: int",
        "class A:\n    '''Doc.'''\n    def f(self, y) -> int:\n        return y",
    ],
)
def test_an_undocumented_or_untyped_name_is_noticed(text: str) -> None:
    assert surface_offences(parse(text))


def test_a_documented_and_typed_name_is_accepted() -> None:
    documented = "class A:\n    '''Doc.'''\n    def f(self, y: int) -> int:\n        return y\n\n\n"
    text = documented + "def _private(x): ..."
    assert surface_offences(parse(text)) == []
