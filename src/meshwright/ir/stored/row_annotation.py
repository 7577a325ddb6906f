"""What a row is called in the profile of a run that executes it: the executor writes it, whoever reads profiles reads it."""

from __future__ import annotations

import re
from typing import NamedTuple

from meshwright.ir.table import Kind

_SAID = re.compile(r"PP:(\d+)(\D\S*) \| (\d+) (\S+) ([A-Z]+)$")
_MICROBATCH = re.compile(r"(\d+)(?:\.\d+)?$")


class RowAnnotation(NamedTuple):
    """A row by its text in torch's spelling (`Program.text_of`), its place in the list of its rank, name and kind."""

    text: str
    place: int
    name: str
    kind: Kind

    @property
    def said(self) -> str:
        """As it stands in a profile, such as "PP:1F3 | 17 F COMPUTE"."""
        return f"PP:{self.text} | {self.place} {self.name} {self.kind.name}"

    @property
    def stage(self) -> int:
        """Before the name."""
        return int(self.text[: self.text.index(self.name)])

    @property
    def microbatch(self) -> int:
        """Behind the name; -1 for what an iteration has once."""
        found = _MICROBATCH.match(self.text.partition(self.name)[2])
        return int(found[1]) if found else -1

    @staticmethod
    def read(said: str) -> RowAnnotation | None:
        """The row; None where nobody of ours wrote this."""
        found = _SAID.match(said)
        if found is None or not found[2].startswith(found[4]) or found[5] not in Kind.__members__:
            return None
        return RowAnnotation(found[1] + found[2], int(found[3]), found[4], Kind[found[5]])
