"""Reads the commands that a shell script would run, with its own variables, arrays and plain conditions filled in.

Nothing is executed. What only a running shell could know (other programs' output, variables that are set outside)
stays as it is written, so that an option with such a value can be named.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from meshwright.interop.launch.shell_words import SEPARATORS, Token, Word, tokens
from meshwright.specs.bound.bound import MOST_COMPUTED, MOST_EXPANDED, check_most
from meshwright.specs.error import PlanError

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NAMED = re.compile(r"\$\{?(#?)(\w+|[@*])(?:\[[@*]\])?(?::?([-=+?])(.*?))?\}?", re.DOTALL)
_KEYWORDS = ("then", "else", "fi", "do", "done", "elif", "{", "}", "!")
_DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_ARITHMETIC: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


@dataclass
class ShellScript:
    """The commands of a script as lists of words; `notes` say which conditions could not be decided.

    `given` are variables that the user sets from outside; they win over the script's own.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=dict)
    num_expanded: int = 0  # characters, so far
    branches: list[list[bool]] = field(default_factory=list)  # of each open `if`: runs now, has run already

    @classmethod
    def read(cls, text: str, given: Mapping[str, str] | None = None) -> ShellScript:
        """Every command of `text`, in order."""
        script = cls(dict(given or {}))
        script.variables = {name: [value] for name, value in script.given.items()}
        for statement in _statements(text):
            script._follow(statement)
        return script

    def _follow(self, statement: list[Token | list[Word]]) -> None:
        """One statement: a branch, an assignment, or a command."""
        words = [part for part in statement if isinstance(part, Token)]
        head = _plain(words[0].word) if words else ""
        if head == "if":
            # Within a branch that is not taken nothing is decided, and no inner branch runs.
            taken = self._decide(statement[1:]) if self._runs() else False
            self.branches.append([taken, taken or not self._runs()])
        elif head == "elif" and self.branches:
            has_run = self.branches[-1][1]
            self.branches[-1] = [False, True] if has_run else [taken := self._decide(statement[1:]), taken]
        elif head == "else" and self.branches:
            self.branches[-1] = [not self.branches[-1][1], True]
            self._follow_rest(statement)
        elif head == "fi" and self.branches:
            self.branches.pop()
        elif head in _KEYWORDS:
            self._follow_rest(statement)
        elif self._runs() and statement:
            self._run(statement)

    def _follow_rest(self, statement: list[Token | list[Word]]) -> None:
        if statement[1:]:
            self._follow(statement[1:])

    def _runs(self) -> bool:
        return all(branch[0] for branch in self.branches)

    def _run(self, statement: list[Token | list[Word]]) -> None:
        parts = list(statement)
        if isinstance(parts[0], Token) and _plain(parts[0].word) in _DECLARATIONS:
            parts = parts[1:]
        num_assigned = _num_assigned(parts)
        words = [
            text
            for part in parts[num_assigned:]
            if isinstance(part, Token)
            for text in self.expand(part.word)
        ]
        if words:  # what is assigned before a command is for that command's environment only
            self.commands.append(words)
            return
        for position in range(num_assigned):
            self._assign(parts[position:])

    def _assign(self, parts: list[Token | list[Word]]) -> None:
        """Do the assignment that the first part is; nothing where it is the array of the one before."""
        first, found = parts[0], _assignment(parts[0])
        if found is None or not isinstance(first, Token):
            return
        name, adds, rest = found[1], bool(found[2]), found[3]
        following = parts[1] if len(parts) > 1 and isinstance(parts[1], list) else None
        if following is not None and not rest and len(first.word) == 1:
            values = [text for word in following for text in self.expand(word)]
        else:
            values = ["".join((rest, *(self._text(piece.text) if piece.is_expansion else piece.text
                                       for piece in first.word[1:])))]  # fmt: skip
        if name not in self.given:
            old = self.variables.get(name, []) if adds else []
            is_list = following is not None or not adds
            self.variables[name] = [*old, *values] if is_list else ["".join([*old, *values])]

    def expand(self, word: Word) -> list[str]:
        """The texts of a word: unquoted expansions are split at blanks, as a shell does."""
        found, current, is_begun = [], "", False
        for piece in word:
            if not piece.is_expansion:
                current, is_begun = current + piece.text, True
                continue
            values = self._values(piece.text)
            if piece.is_quoted and "[@]" not in piece.text and piece.text != "$@":
                current, is_begun = current + " ".join(values), True
                continue
            is_open = values == [piece.text]  # only a running shell knows it
            texts = (
                values if piece.is_quoted or is_open else [part for value in values for part in value.split()]
            )
            if not texts:
                continue
            found += [current + texts[0], *texts[1:]] if len(texts) > 1 else []
            current, is_begun = (found.pop() if len(texts) > 1 else current + texts[0]), True
        return [*found, current] if is_begun else found

    def _text(self, expansion: str) -> str:
        return " ".join(self._values(expansion))

    def _values(self, expansion: str) -> list[str]:
        """What an expansion stands for; itself where only a running shell would know."""
        if expansion.startswith("$(("):
            return [self._arithmetic(expansion)]
        found = _NAMED.fullmatch(expansion)
        if found is None or expansion.startswith("$("):
            return [expansion]
        length, name, mark, other = found.groups()
        values = self.variables.get(name)
        if length:
            return [expansion] if values is None else [str(len(values))]
        if mark in ("-", "=") and (values is None or values == [""]):
            return [self._fill(other or "")]
        if mark == "+":
            return [] if values is None else [self._fill(other or "")]
        return [expansion] if values is None else self._counted(name, values)

    def _counted(self, name: str, values: list[str]) -> list[str]:
        """The values of a variable that is expanded once more. Raises PlanError where a script doubles its texts for ever."""
        self.num_expanded += sum(map(len, values))
        what = f"characters of all that the script's variables expand to, {name} among them"
        check_most(what, self.num_expanded, MOST_EXPANDED, PlanError)
        return values

    def _fill(self, text: str) -> str:
        """A default with its own expansions."""
        words = [token.word for token in tokens(text) if token.word]
        return " ".join(part for word in words for part in self.expand(word))

    def _arithmetic(self, expansion: str) -> str:
        """ "$((A*B))" as a number; itself where a name is not known."""
        inner = expansion[3:].rstrip(")")
        named = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", lambda name: self._text("$" + name[1]), inner)
        try:
            return str(_value(ast.parse(named.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return expansion  # a parser may be out of either

    def _decide(self, condition: list[Token | list[Word]]) -> bool:
        """A test such as [ "$A" = "fp8" ] or [[ -n $B ]]; what cannot be decided counts as true, and is noted."""
        words = [part for part in condition if isinstance(part, Token)]
        texts = [" ".join(self.expand(part.word)) if part.word else part.operator for part in words]
        results: list[bool] = []
        joint = ""
        for test in _split(texts):
            if test in (["&&"], ["||"]):
                joint = test[0]
                continue
            result = _test(test)
            if result is None:
                self.notes.append(
                    f"took the branch `if {' '.join(texts)}`: its condition needs a running shell"
                )
                return True
            results.append(result)
        return any(results) if joint == "||" else all(results)


def _statements(text: str) -> Iterator[list[Token | list[Word]]]:
    """Statements: words, and arrays as lists; conditions keep their && and ||."""
    statement: list[Token | list[Word]] = []
    array: list[Word] | None = None
    for token in tokens(text):
        is_condition = (
            bool(statement)
            and isinstance(statement[0], Token)
            and _plain(statement[0].word) in ("if", "elif")
        )
        if array is not None:
            if token.operator == ")":
                statement.append(array)
                array = None
            elif token.word:
                array.append(token.word)
        elif token.operator == "(" and statement and _opens_array(statement[-1]):
            array = []
        elif token.operator in ("&&", "||") and is_condition:
            statement.append(token)
        elif token.operator in SEPARATORS or token.operator in ("(", ")", ";;"):
            if statement:
                yield statement
            statement = []
        else:
            statement.append(token)
    if statement:
        yield statement


def _opens_array(part: Token | list[Word]) -> bool:
    found = _assignment(part)
    return found is not None and not found[3] and isinstance(part, Token) and len(part.word) == 1


def _assignment(part: Token | list[Word]) -> re.Match[str] | None:
    """NAME=REST, where a part is one."""
    if not isinstance(part, Token) or not part.word:
        return None
    first = part.word[0]
    return None if first.is_quoted or first.is_expansion else _ASSIGNED.fullmatch(first.text)


def _num_assigned(parts: list[Token | list[Word]]) -> int:
    """How many parts at the beginning are assignments and their arrays."""
    for position, part in enumerate(parts):
        if not isinstance(part, list) and _assignment(part) is None:
            return position
    return len(parts)


def _plain(word: Word) -> str:
    """The text of a word without quotes and expansions; empty where it has any."""
    return word[0].text if len(word) == 1 and not word[0].is_expansion and not word[0].is_quoted else ""


def _split(texts: list[str]) -> list[list[str]]:
    """Tests between && and ||, without their brackets."""
    found: list[list[str]] = [[]]
    for text in texts:
        if text in ("&&", "||"):
            found += [[text], []]
        elif text not in ("[", "]", "[[", "]]", "test"):
            found[-1].append(text)
    return [test for test in found if test]


def _test(words: list[str]) -> bool | None:
    """One test; None where it asks for files, or for a value that is not known."""
    negated = words[:1] == ["!"]
    words = words[1:] if negated else words
    is_known = not any("$" in word for word in words)
    result: bool | None = None
    if len(words) == 3 and words[1] in ("=", "==", "!=") and is_known:
        result = (words[0] == words[2]) is (words[1] != "!=")
    elif len(words) == 3 and words[1] in ("-eq", "-ne", "-gt", "-ge", "-lt", "-le") and is_known:
        result = _compare(words)
    elif len(words) == 2 and words[0] in ("-z", "-n"):
        # A variable that the script does not set is empty unless someone sets it outside.
        is_empty = not words[1] or not is_known
        result = is_empty is (words[0] == "-z")
    elif words and words[0] in ("-f", "-d", "-e"):
        result = negated  # a script that looks for its own files finds them
    return result if result is None or not negated or words[0] in ("-f", "-d", "-e") else not result


def _compare(words: list[str]) -> bool | None:
    try:
        left, right = int(words[0]), int(words[2])
    except ValueError:
        return None
    return {
        "-eq": left == right, "-ne": left != right, "-gt": left > right, "-ge": left >= right,
        "-lt": left < right, "-le": left <= right,
    }[words[1]]  # fmt: skip


def _value(node: ast.AST) -> int:
    """Whole-number arithmetic of + - * / %; ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        number = _ARITHMETIC[type(node.op)](_value(node.left), _value(node.right))
        if abs(number) < MOST_COMPUTED:
            return number
    raise ValueError("no whole-number arithmetic")
