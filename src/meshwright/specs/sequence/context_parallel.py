"""How the devices of a context-parallel group attend to sequences that they share: the kind, where tokens are, degrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meshwright.specs.error import PlanError
from meshwright.specs.model.shape import ModelShape
from meshwright.specs.sequence.sequence_part import ARRANGEMENTS, Arrangement, SequencePart, num_runs

Context = Literal["ring", "all_gather", "ulysses", "token_ring", "ring_self_attention"]
TokenLayout = Literal["", "contiguous", "zigzag", "stripe"]
# How each kind arranges tokens where nobody says otherwise. Behind Ulysses' exchange every device has the whole sequence of
# some heads, so all do the same work as it is.
ARRANGEMENT_OF: Mapping[Context, Arrangement] = {
    "ring": "zigzag", "all_gather": "zigzag", "ulysses": "contiguous", "token_ring": "zigzag",
    "ring_self_attention": "contiguous",
}  # fmt: skip
CONTEXTS: tuple[Context, ...] = tuple(ARRANGEMENT_OF)
RINGS: tuple[Context, ...] = ("ring", "token_ring", "ring_self_attention")  # in which something travels
FULL_SCORES: Context = "ring_self_attention"  # whole rows of scores are computed, and kept
# What a search takes only where it is named: it keeps more than the others, or has its use on few networks.
ASKED_FOR: tuple[Context, ...] = ("token_ring", FULL_SCORES)
INSIDE_ULYSSES: tuple[Context, ...] = ("ring",)  # along which groups that exchange heads may send
TOKEN_LAYOUTS: tuple[TokenLayout, ...] = ("", *ARRANGEMENTS)


@dataclass(frozen=True)
class ContextParallel:
    """``degree`` devices that attend as ``kind`` says; ``layout``: where tokens are, "" as the kind has them.
    ``ulysses``: so many neighbours exchange heads, and groups of them attend as the kind says.

    Raises PlanError for what there is no such thing of.
    """

    degree: int = 1
    kind: Context = "ring"
    layout: TokenLayout = ""
    ulysses: int = 1

    def __post_init__(self) -> None:
        if self.kind not in CONTEXTS:
            raise PlanError(f"context is {self.kind!r}", allowed=" or ".join(CONTEXTS))
        if self.layout not in TOKEN_LAYOUTS:
            raise PlanError(f"token_layout is {self.layout!r}", allowed=" or ".join(("''", *ARRANGEMENTS)))
        if not isinstance(self.ulysses, int) or isinstance(self.ulysses, bool) or self.ulysses < 1:
            raise PlanError(f"ulysses is {self.ulysses!r}", allowed="a whole number from 1")
        if self.ulysses == 1:
            return
        if self.kind not in INSIDE_ULYSSES:
            raise PlanError(
                f"ulysses is {self.ulysses} with context {self.kind}",
                allowed=f"1, or context {' or '.join(INSIDE_ULYSSES)}",
                next="leave ulysses out: context ulysses exchanges heads among all devices of cp",
            )
        if self.degree % self.ulysses or self.degree == self.ulysses:
            raise PlanError(
                f"ulysses is {self.ulysses} with cp({self.degree})",
                allowed="a number below cp that divides it",
                next="take context ulysses to exchange heads among all devices of cp",
            )

    @property
    def arrangement(self) -> Arrangement:
        """Where the tokens are."""
        return self.layout or ARRANGEMENT_OF[self.kind]

    @property
    def num_runs(self) -> int:
        """What the length of a sequence is a multiple of."""
        return num_runs(self.degree, self.arrangement, self.ulysses)

    @property
    def heads_degree(self) -> int:
        """Devices that divide heads among themselves while they attend."""
        return self.degree if self.kind == "ulysses" else self.ulysses

    @property
    def ring_degree(self) -> int:
        """Devices, or groups of those that divide heads, whose queries are of different tokens while they attend."""
        return self.degree // self.heads_degree

    @property
    def travels(self) -> bool:
        """Do keys and values, or queries, go from device to device?"""
        return self.kind in RINGS and self.ring_degree > 1

    @property
    def has_full_scores(self) -> bool:
        """Are whole rows of scores kept?"""
        return self.kind == FULL_SCORES and self.degree > 1

    def part(self, sequence_length: int, rank: int = 0) -> SequencePart:
        """The tokens of a device of sequences so long. Raises PlanError for a length that does not divide."""
        return SequencePart(sequence_length, self.degree, rank, self.arrangement, self.ulysses)

    def attending(self, sequence_length: int) -> SequencePart:
        """The tokens whose queries a device has while it attends, of the first one. Raises PlanError as `part`."""
        return SequencePart(sequence_length, self.ring_degree, 0, self.arrangement)

    def repeats_of_key(self, num_heads: int, num_kv_heads: int) -> int:
        """How often each key-value head is repeated, so that every device that divides heads has one; 1: there are enough.
        Raises PlanError where heads cannot be divided."""
        return repeats_of_key(num_heads, num_kv_heads, self.heads_degree)

    def check(self, model: ModelShape, tp: int, sequence_length: int) -> None:
        """Raise PlanError where a sequence is no whole runs of every rank, or heads of a device of `tp` cannot be divided."""
        if self.degree > 1:
            self.part(sequence_length)
        if self.heads_degree > 1:
            check_heads(model, tp, self.heads_degree)

    def divides(self, model: ModelShape, tp: int, sequence_length: int) -> bool:
        """Can it divide the sequence and the model's heads?"""
        try:
            self.check(model, tp, sequence_length)
        except PlanError:
            return False
        return True


def repeats_of_key(num_heads: int, num_kv_heads: int, degree: int) -> int:
    """How often Ulysses over `degree` ranks repeats each key-value head, so that every rank has one; 1: there are enough.

    Raises PlanError where the ranks do not divide the query heads, or neither they nor the key-value heads divide the other.
    """
    if num_heads % degree or (num_kv_heads % degree and degree % num_kv_heads):
        raise PlanError(
            f"ulysses over {degree} ranks divides {num_heads} query and {num_kv_heads} key-value heads of a device",
            allowed="a degree that divides the query heads, and divides the key-value heads or is a multiple of them",
            next="take another degree, or context ring alone, which divides no heads",
        )
    return max(1, degree // num_kv_heads)


def check_heads(model: ModelShape, tp: int, degree: int) -> None:
    """Raise PlanError where Ulysses over `degree` ranks cannot divide the heads of a device of `tp` in every block."""
    for block in model.kinds:
        repeats_of_key(block.attention.num_heads // tp, block.attention.num_kv_heads // tp, degree)


def divides_heads(model: ModelShape, tp: int, degree: int) -> bool:
    """Can Ulysses divide the model's heads so?"""
    try:
        check_heads(model, tp, degree)
    except PlanError:
        return False
    return True
