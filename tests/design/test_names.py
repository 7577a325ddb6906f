"""Empty names, unfinished work, swallowed errors, unsafe calls and traces of a machine stay out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.design.source import SourceFile, dotted, package_files, parse

EMPTY_NAMES = {"util", "utils", "common", "misc", "helper", "helpers", "tools", "stuff"}
EMPTY_CLASS = re.compile(r"^_*Base[A-Z]|(Manager|Helper|Impl)$")
BROAD = {"Exception", "BaseException"}
UNSAFE_CALLS = {"pickle.load", "pickle.loads", "eval", "exec", "os.system", "yaml.load"}
UNSAFE_KEYWORDS = {("shell", True), ("weights_only", False)}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Folders of one person's or one job's machine, and hosts packages come from: neither is ours to name.
FOREIGN = re.compile(
    r"""["' ]/(home|root|work|mnt|Users)/\w|pypi\.org|files\.pythonhosted|download\.pytorch"""
)

Finding = tuple[int, str]


def empty_names(file: SourceFile) -> Iterator[Finding]:
    for part in Path(file.path).with_suffix("").parts:
        if part in EMPTY_NAMES:
            yield 1, f"`{part}` names nothing: the noun it works on is missing"
    for node in file.nodes:
        if isinstance(node, ast.ClassDef) and EMPTY_CLASS.search(node.name):
            yield (
                node.lineno,
                f"class {node.name}: a protocol is named by its role, a class by what distinguishes it",
            )


def unfinished_work(file: SourceFile) -> Iterator[Finding]:
    for number, line in enumerate(file.text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield number, "a mark of unfinished work"
    for node in file.nodes:
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield node.lineno, "NotImplementedError: what is not there is not offered"


def is_empty(body: list[ast.stmt]) -> bool:
    """Whether a block does nothing: only `pass`, `...` or a string."""
    return all(
        isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in body
    )


def swallowed_errors(file: SourceFile) -> Iterator[Finding]:
    for node in file.nodes:
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield node.lineno, "bare except"
            elif is_empty(node.body):
                yield node.lineno, "except that does nothing (contextlib.suppress says so in words)"
        if isinstance(node, ast.Call) and dotted(node.func).endswith("suppress"):
            if any(dotted(argument) in BROAD for argument in node.args):
                yield node.lineno, "every error is suppressed"


def unsafe_calls(file: SourceFile) -> Iterator[Finding]:
    for node in file.nodes:
        if not isinstance(node, ast.Call):
            continue
        if dotted(node.func) in UNSAFE_CALLS:
            yield node.lineno, f"{dotted(node.func)} runs what it is given"
        for keyword in node.keywords:
            if (
                isinstance(keyword.value, ast.Constant)
                and (keyword.arg, keyword.value.value) in UNSAFE_KEYWORDS
            ):
                yield node.lineno, f"{keyword.arg}={keyword.value.value}"


def prints(file: SourceFile) -> Iterator[Finding]:
    for node in file.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield (
                node.lineno,
                "print: results go through the command line's console, the rest through logging",
            )


def foreign_places(file: SourceFile) -> Iterator[Finding]:
    for number, line in enumerate(file.text.splitlines(), 1):
        if FOREIGN.search(line):
            yield number, "a path of one machine, or a package host"


RULES: tuple[Callable[[SourceFile], Iterator[Finding]], ...] = (
    empty_names,
    unfinished_work,
    swallowed_errors,
    unsafe_calls,
    prints,
    foreign_places,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Callable[[SourceFile], Iterator[Finding]]) -> None:
    found = [f"{file.path}:{line}: {why}" for file in package_files() for line, why in rule(file)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (empty_names, "class BasePass: ..."),
        (empty_names, "class TraceManager: ..."),
        (unfinished_work, "x = 1  # TODO: later"),
        (unfinished_work, "def f():\n    raise NotImplementedError"),
        (unfinished_work, "def f():\n    raise NotImplementedError('x')"),
        (swallowed_errors, "try:\n    f()\nexcept:\n    g()"),
        (swallowed_errors, "try:\n    f()\nexcept ValueError:\n    pass"),
        (swallowed_errors, "with contextlib.suppress(Exception):\n    f()"),
        (unsafe_calls, "pickle.loads(data)"),
        (unsafe_calls, "run(command, shell=True)"),
        (unsafe_calls, "torch.load(path, weights_only=False)"),
        (prints, "print('done')"),
        (foreign_places, "path = '/home/someone/models'"),
    ],
)
def test_an_offence_is_noticed(rule: Callable[[SourceFile], Iterator[Finding]], text: str) -> None:
    assert list(rule(parse(text)))


def test_a_file_that_names_nothing_is_noticed() -> None:
    assert list(empty_names(parse("x = 1", "src/meshwright/ir/utils.py")))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (empty_names, "class Baseline: ..."),
        (swallowed_errors, "try:\n    f()\nexcept OSError as error:\n    warn(error)"),
        (unsafe_calls, "torch.load(path, weights_only=True)"),
        (prints, "console.print(x)"),
    ],
)
def test_what_only_looks_like_an_offence_is_accepted(
    rule: Callable[[SourceFile], Iterator[Finding]], text: str
) -> None:
    assert list(rule(parse(text))) == []
