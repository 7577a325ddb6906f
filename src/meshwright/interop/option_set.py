"""The options of a command line, each handed out once with what it means; what is left over is sorted at the end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshwright.interop.imported import Draft, Option
from meshwright.specs.error import PlanError

_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")  # of a shell, also inside an expression


class OptionSet:
    """Options by name (without dashes) with their values; the last of several wins.

    Every method that reads an option notes what it became in the plan, so none is read silently.
    """

    def __init__(self, words: Sequence[str], draft: Draft) -> None:
        self.draft = draft
        self.values: dict[str, list[str]] = {}
        self._is_read: set[str] = set()
        name = ""
        for word in words:
            if word.startswith("--") and len(word) > 2:
                name, _, value = word[2:].partition("=")
                name = name.replace("_", "-")
                self.values[name] = [value] if value else []
            elif word.startswith("$") and (not name or self.values[name]):
                self._note_open(word)
            elif name and not word.endswith(".py"):
                self.values[name].append(word)
            else:
                name = ""  # a program's name, and what stands before the first option

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def _note_open(self, word: str) -> None:
        """An expansion that the script does not define may hold options: it is listed, not dropped."""
        self.draft.unknown.append(
            Option(word, "", "a variable that the script does not set; give it with --set")
        )

    def note(self, name: str, meaning: str) -> None:
        """`name` decided something."""
        self._is_read.add(name)
        self.draft.understood.append(Option(f"--{name}", " ".join(self.values[name]), meaning))

    def reject(self, name: str, reason: str) -> None:
        """`name` asks for what a plan cannot say."""
        self._is_read.add(name)
        self.draft.unknown.append(Option(f"--{name}", " ".join(self.values[name]), reason))

    def leave(self, name: str, reason: str) -> None:
        """Where it is there, `name` changes nothing of a plan. `reason` may hold {value}."""
        if name in self.values:
            self._is_read.add(name)
            value = " ".join(self.values[name])
            self.draft.irrelevant.append(Option(f"--{name}", value, reason.replace("{value}", value)))

    def flag(self, name: str, meaning: str) -> bool:
        """Whether the option is there."""
        if name in self.values:
            for word in [word for word in self.values[name] if word.startswith("$")]:
                self.values[name].remove(word)
                self._note_open(word)
            self.note(name, meaning)
        return name in self.values

    def flags(self, names: Sequence[str], meaning: str) -> bool:
        """Whether one of several options is there; each that is there is noted."""
        found = [self.flag(name, meaning) for name in names]
        return any(found)

    def text(self, name: str, meaning: str, default: str = "") -> str:
        """Its value; `default` where it is not there. `meaning` may hold {value}."""
        if name not in self.values:
            return default
        value = " ".join(self.values[name])
        self.note(name, meaning.replace("{value}", value))
        return value

    def integer(self, name: str, meaning: str, default: int | None = None, least: int = 1) -> int | None:
        """Its value as a whole number from `least`. Raises PlanError naming the option, and its variable if it has one."""
        if name not in self.values:
            return default
        value = self.text(name, meaning)
        if value.isascii() and value.isdigit() and int(value) >= least:
            return int(value)
        raise PlanError(
            f"{self.draft.where}: --{name} is {value!r}",
            allowed=f"a whole number from {least}",
            next=_next_step(value),
        )

    def number(self, name: str, meaning: str, default: float) -> float:
        """Its value as a number above zero. Raises PlanError naming the option."""
        if name not in self.values:
            return default
        value = self.text(name, meaning)
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if 0 < found < math.inf:
            return found
        raise PlanError(
            f"{self.draft.where}: --{name} is {value!r}",
            allowed="a number above zero",
            next=_next_step(value),
        )

    def count(self, name: str, meaning: str, default: int) -> int:
        """`integer` where there is always a value; 0 is one where it is the default."""
        found = self.integer(name, meaning, default, least=min(default, 1))
        return default if found is None else found

    def sort_rest(self, irrelevant: Mapping[str, str], unsupported: Mapping[str, str]) -> None:
        """Put every option that nobody read into one of the other lists, each with its topic or reason."""
        for name, values in self.values.items():
            if name in self._is_read:
                continue
            option = (f"--{name}", " ".join(values))
            if name in irrelevant:
                self.draft.irrelevant.append(Option(*option, irrelevant[name]))
            else:
                self.draft.unknown.append(Option(*option, unsupported.get(name, "not known")))


def _next_step(value: str) -> str:
    """What to do about a value that is no number: name its variable, or write out what no shell has computed."""
    unset = _VARIABLE.search(value)
    if unset is not None:
        return f"the script does not set {unset[1]}: add --set {unset[1]}=NUMBER"
    return "write its result into the script: no command is run" if "$" in value else "correct the option"


def launch_words(commands: Iterable[Sequence[str]]) -> list[str]:
    """The words of the command with most options: the launch.

    Lines that begin with an option are one command together. A command line handed on as one text
    (``srun bash -c "..."``) is cut into its words.
    """
    cut = [
        [part for word in words for part in (word.split() if " --" in word else [word])] for words in commands
    ]
    bare = [word for words in cut for word in words if words[0].startswith("--")]
    return max((bare, *cut), key=lambda words: sum(word.startswith("--") for word in words))


def flat(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a file with tables, those of a table with its name and a dot before them."""
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
