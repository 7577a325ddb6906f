"""The package's sources as parsed files, for the tests that read code instead of running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "src" / "meshwright"
CORE_ROOMS = ("specs", "ir", "schedules", "stage", "lowering", "costs", "simulator")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class SourceFile:
    """One Python file: its path from the checkout, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree: rules look through it one after the other, and walking it is most of their work."""
        return tuple(ast.walk(self.tree))

    @property
    def room(self) -> str:
        """Name of the room a file lives in; its own name where it lives in none (api, catalog)."""
        return Path(self.path).relative_to("src/meshwright").parts[0].removesuffix(".py")


def parse(text: str, path: str = "example.py") -> SourceFile:
    """A source file from its text."""
    return SourceFile(path, text, ast.parse(text, path))


@cache
def _parsed(path: Path) -> SourceFile:
    return parse(path.read_text(encoding="utf-8"), str(path.relative_to(CHECKOUT)))


def python_files(*folders: str) -> tuple[SourceFile, ...]:
    """Every Python file under folders of the checkout, sorted by path; parsed once, seconds for all of them."""
    return tuple(
        map(_parsed, sorted(path for folder in folders for path in (CHECKOUT / folder).rglob("*.py")))
    )


def package_files() -> tuple[SourceFile, ...]:
    """Every Python file of the package."""
    return python_files("src/meshwright")


def functions(file: SourceFile) -> Iterator[FunctionNode]:
    """Every function and method of a file, nested ones too."""
    return (node for node in file.nodes if isinstance(node, FunctionNode))


def dotted(node: ast.expr) -> str:
    """A name with its attributes, as a.b.c; of what is something else, the attributes after it."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([*([node.id] if isinstance(node, ast.Name) else []), *reversed(parts)])


def imported_modules(node: ast.AST) -> list[str]:
    """Names of the modules that an import statement names; relative imports start with dots."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []


def module_level_imports(file: SourceFile) -> Iterator[tuple[int, str]]:
    """(line, module) of every import that runs when the file does: not in functions or TYPE_CHECKING."""
    waiting: list[ast.AST] = [file.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FunctionNode | ast.Lambda) or is_type_checking(node):
            continue
        yield from ((node.lineno, name) for name in imported_modules(node) if hasattr(node, "lineno"))
        waiting.extend(ast.iter_child_nodes(node))


def is_type_checking(node: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
