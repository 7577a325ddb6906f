"""Rounds of a relay: what travels around an axis, what stays on its device, and how what is owed goes home.

In a relay every device has one operand that stays and one that travels to the next device, step by step, until it has been
everywhere. What a step computes belongs to one of the two. What belongs to the operand that stays is added up where it
is. What belongs to the one that travels is owed to the device that this came from, and gets there in one of three ways:

    follows   it travels on, one hop behind, every step adds to it, and one more hop brings it home
    returns   every step's part goes straight back, s devices of a ring after step s, and is added at home
    stays     steps put the parts side by side where they are; a reduce-scatter behind the last one brings the sums home

    kind                 travels               forward                  backward
    ring                 keys and values       added where queries are  gradients of keys and values follow
    token ring           queries               results return           gradients of queries return
    ring self-attention  keys, then values     scores fill; added       gradients of values, then of keys, stay

Ring: Liu et al. 2023, arXiv 2310.01889. Token ring: Wang et al. 2024, arXiv 2412.20501, which has no backward: ours sends
queries, gradients of outputs and two numbers a row around. Ring self-attention: Li et al. 2021, arXiv 2105.13120.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Way = Literal["follows", "returns", "stays"]
AGAIN = "_again"  # behind the kind of a sum that a forward makes once more
# What a round reads besides operands of the segment: what its forward kept, the gradient of what that made, and that itself.
KEPT, GIVEN, MADE = "kept", "given", "made"


class Owed(NamedTuple):
    """What steps make for the device that what travels came from. ``made``: the kind of value, as a step makes it;
    ``arrived``: as it comes home, or to the next step; ``message``: behind SEND and RECEIVE in names. Of what returns
    ``total`` is the kind that it is added to, by computes named ``adds``."""

    way: Way
    made: str
    arrived: str
    message: str = ""
    total: str = ""
    adds: str = ""


class Round(NamedTuple):
    """Once around the axis. ``step``: name of its computes; ``stays``: what they all read; ``travels``: the kind of what goes
    around, and ``message`` behind SEND and RECEIVE in names; ``total``: the kind that they add to where they are, "": none.

    ``prepares``: name of a compute in front, which makes a value of kind ``prepared`` of ``prepared_from``: one of those that
    stay, or else what travels."""

    step: str
    stays: tuple[str, ...]
    travels: str
    message: str
    total: str = ""
    owed: Owed | None = None
    prepares: str = ""
    prepared: str = ""
    prepared_from: tuple[str, ...] = (KEPT, GIVEN)

    @property
    def again(self) -> Round:
        """A forward once more: its computes, its sums, and what is on its way to these have names of their own, so none of
        them stands for another."""
        owed, total = self.owed, self.total and self.total + AGAIN
        if owed is not None:
            made, arrived, sum_ = (each + AGAIN for each in (owed.made, owed.arrived, owed.total))
            owed = owed._replace(made=made, arrived=arrived, total=sum_, adds=f"{owed.adds}_AGAIN")
        return self._replace(step=f"{self.step}_AGAIN", total=total, owed=owed)

    @property
    def computes(self) -> tuple[str, ...]:
        """Names of its computes."""
        names = (self.prepares, self.step, self.owed.adds if self.owed else "")
        return tuple(name for name in names if name)

    @property
    def stepped(self) -> tuple[str, ...]:
        """Those of them whose part is a step's."""
        return tuple(name for name in self.computes if name != self.prepares)

    @property
    def sends_prepared(self) -> bool:
        """Does what is prepared travel?"""
        return bool(self.prepared) and self.prepared not in self.stays

    @property
    def messages(self) -> tuple[str, ...]:
        """What its sends are named by."""
        names = (self.message, self.owed.message if self.owed else "")
        return tuple(name for name in names if name)


class Rounds(NamedTuple):
    """A relay's way there and back. ``operand``: of what the segment reads, that which travels forward."""

    operand: str
    forward: Round
    backward: Round

    @property
    def all(self) -> tuple[Round, ...]:
        """Forward, forward once more, backward."""
        return (self.forward, self.forward.again, self.backward)


ATTEND, ATTEND_BACKWARD = "ATTEND", "ATTEND_BACKWARD"
STATE, QUERY_SUM = "attention_state", "query_sum"
RING = Rounds(
    "block",
    Round(ATTEND, ("query",), "travelling_block", "BLOCK", STATE),
    Round(
        ATTEND_BACKWARD, (KEPT, GIVEN), "travelling_block", "BLOCK", QUERY_SUM,
        Owed("follows", "leaving_gradient", "arrived_gradient", "BLOCK_GRADIENT"),
    ),
)  # fmt: skip
TOKEN_RING = Rounds(
    "query",
    Round(
        ATTEND, ("block",), "travelling_query", "QUERY",
        owed=Owed("returns", "partial_state", "returned_state", "PARTIAL", STATE, "MERGE"),
    ),
    Round(
        ATTEND_BACKWARD, ("block",), "travelling_rows", "ROWS", "block_sum",
        Owed(
            "returns", "leaving_query_gradient", "returned_query_gradient", "QUERY_GRADIENT", QUERY_SUM, "ADD_GRADIENT"
        ),
        "PREPARE_ROWS", "own_rows",
    ),
)  # fmt: skip
# Ring self-attention is two relays: scores of all keys, and behind their softmax what they weigh of all values.
SCORES = Rounds(
    "keys",
    Round("SCORE", ("query",), "travelling_keys", "KEYS", "scores"),
    Round(
        "SCORE_BACKWARD", (KEPT, "pair_gradient"), "travelling_keys", "KEYS", QUERY_SUM,
        Owed("stays", "key_terms", "own_key_gradient"), "SOFTMAX_BACKWARD", "pair_gradient", (MADE, GIVEN),
    ),
)  # fmt: skip
WEIGHTED = Rounds(
    "values",
    Round("WEIGH", ("probabilities",), "travelling_values", "VALUES", "weighted_sum"),
    Round(
        "WEIGH_BACKWARD", ("probabilities", GIVEN), "travelling_values", "VALUES", "probability_sum",
        Owed("stays", "value_terms", "own_value_gradient"),
    ),
)  # fmt: skip
RELAYS = (RING, TOKEN_RING, SCORES, WEIGHTED)
