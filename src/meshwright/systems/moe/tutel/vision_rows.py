"""Steps of a small vision model with a layer of experts, as a program: in each step another r, with nothing moved between.

Every rank owns one part of one expert's inner units, whatever r is. A step gathers parts to those who compute with them,
sends tokens there as often as an expert is divided, and brings gradients of both home.
"""

from __future__ import annotations

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Exchange, Hop, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary

AXIS, STREAM = "ep", "dispatch"


def _kind(name: str, carried: bool = False) -> ValueKind:
    return ValueKind(name, index="none", microbatch=False, carried=carried)


# Parts are numbers of a step. What is carried is kept for who asks for it.
OWNED, DENSE, LOSS, GRADIENT, DENSE_GRADIENT = (
    _kind(name, carried=True)
    for name in ("owned_part", "dense_parameters", "image_loss", "part_gradient", "dense_gradient")
)
SHARED, GATHERED, GATHER_TO, GATHER_FROM = map(
    _kind, ("shared_part", "gathered_parts", "parts_to", "parts_from")
)
PATCHES, CAME, ROWS_TO, ROWS_FROM = map(_kind, ("patch_rows", "came_patches", "patches_to", "patches_from"))
MADE, RETURNED, ROW_GRADIENTS, CAME_GRADIENTS, INPUT_GRADIENTS, HOME_GRADIENTS = map(
    _kind,
    (
        *("made_patches", "returned_patches", "result_gradients"),
        *("came_result_gradients", "input_gradients", "home_input_gradients"),
    ),
)
PART_GRADIENTS, HOME_PARTS, HALF, DENSE_SENT, DENSE_CAME, TO_ALL, FROM_ALL = map(
    _kind,
    (
        *("computed_part_gradients", "home_part_gradients", "half_dense_gradient"),
        *("dense_gradient_sent", "dense_gradients_came", "dense_to", "dense_from"),
    ),
)
KINDS = (
    *(OWNED, DENSE, LOSS, GRADIENT, DENSE_GRADIENT, SHARED, GATHERED, GATHER_TO, GATHER_FROM),
    *(PATCHES, CAME, ROWS_TO, ROWS_FROM, MADE, RETURNED, ROW_GRADIENTS, CAME_GRADIENTS),
    *(
        INPUT_GRADIENTS,
        HOME_GRADIENTS,
        PART_GRADIENTS,
        HOME_PARTS,
        HALF,
        DENSE_SENT,
        DENSE_CAME,
        TO_ALL,
        FROM_ALL,
    ),
)
MAKE = Effect(Kind.COMPUTE, "MAKE_VISION")
SHARE, ROUTE, FORWARD, HEAD, BACKWARD, PATCH_BACKWARD, STEP = (
    Effect(Kind.COMPUTE, name)
    for name in (
        *("SHARE_PART", "ROUTE_PATCHES", "PATCH_EXPERTS_F", "IMAGE_HEAD", "PATCH_EXPERTS_B"),
        *("PATCHES_B", "VISION_STEP"),
    )
)
(
    COUNT_PARTS,
    GATHER_PARTS,
    COUNT,
    SEND,
    RETURN,
    SEND_GRADIENTS,
    RETURN_GRADIENTS,
    REDUCE_PARTS,
    COUNT_DENSE,
    SUM_DENSE,
) = (
    Effect(Kind.COLLECTIVE, name)
    for name in (
        *(
            "COUNT_PARTS",
            "GATHER_PARTS",
            "COUNT_PATCHES",
            "SEND_PATCHES",
            "RETURN_PATCHES",
            "SEND_PATCH_GRADIENTS",
        ),
        *("RETURN_PATCH_GRADIENTS", "REDUCE_PARTS", "COUNT_DENSE", "SUM_DENSE"),
    )
)
COMPUTES = (SHARE, ROUTE, FORWARD, HEAD, BACKWARD, PATCH_BACKWARD, STEP)
COUNTS = (COUNT_PARTS, COUNT, COUNT_DENSE)
EXCHANGES = (GATHER_PARTS, SEND, RETURN, SEND_GRADIENTS, RETURN_GRADIENTS, REDUCE_PARTS, SUM_DENSE)
VOCABULARY = Vocabulary.of(
    *KINDS,
    *(Name(effect, "path") for effect in (MAKE, *COMPUTES)),
    *(Name(effect) for effect in (*COUNTS, *EXCHANGES)),
    owner="tutel",
)


class _StepRows:
    """Adds the rows of all ranks, step by step."""

    def __init__(self, builder: ProgramBuilder, num_ranks: int) -> None:
        self.builder, self.num_ranks = builder, num_ranks

    def add(
        self, effect: Effect, step: int, reads: tuple[ValueKind, ...], writes: tuple[ValueKind, ...],
        later: tuple[ValueKind, ...] = (),
    ) -> None:  # fmt: skip
        """On every rank; `later`: values of the next step that it writes."""
        made = (*(self._of(kind, step) for kind in writes), *(self._of(kind, step + 1) for kind in later))
        named = effect._replace(reads=tuple(self._of(kind, step) for kind in reads), writes=made)
        for rank in range(self.num_ranks):
            if effect.kind is Kind.COMPUTE:
                self.builder.add(rank, named, stage=rank, part=step)
            else:
                exchange = Exchange((AXIS,))
                self.builder.add(rank, named, stage=rank, hop=0, part=step, stream=STREAM, exchange=exchange)

    def _of(self, kind: ValueKind, step: int) -> Pattern:
        return Pattern(kind.name, index="none", part_offset=step)

    def step(self, step: int) -> None:
        """Parts to who computes with them, patches to experts and back, gradients likewise, and a step of all parameters."""
        self.add(SHARE, step, (OWNED,), (SHARED, GATHER_TO))
        self.add(COUNT_PARTS, step, (GATHER_TO,), (GATHER_FROM,))
        self.add(GATHER_PARTS, step, (SHARED, GATHER_TO, GATHER_FROM), (GATHERED,))
        self.add(ROUTE, step, (DENSE,), (PATCHES, ROWS_TO))
        self.add(COUNT, step, (ROWS_TO,), (ROWS_FROM,))
        self.add(SEND, step, (PATCHES, ROWS_TO, ROWS_FROM), (CAME,))
        self.add(FORWARD, step, (CAME, GATHERED), (MADE,))
        self.add(RETURN, step, (MADE, ROWS_FROM, ROWS_TO), (RETURNED,))
        self.add(HEAD, step, (DENSE, RETURNED), (LOSS, ROW_GRADIENTS, HALF))
        self.add(SEND_GRADIENTS, step, (ROW_GRADIENTS, ROWS_TO, ROWS_FROM), (CAME_GRADIENTS,))
        self.add(BACKWARD, step, (CAME, CAME_GRADIENTS, GATHERED), (INPUT_GRADIENTS, PART_GRADIENTS))
        self.add(RETURN_GRADIENTS, step, (INPUT_GRADIENTS, ROWS_FROM, ROWS_TO), (HOME_GRADIENTS,))
        self.add(REDUCE_PARTS, step, (PART_GRADIENTS, GATHER_FROM, GATHER_TO), (HOME_PARTS,))
        self.add(PATCH_BACKWARD, step, (DENSE, HOME_GRADIENTS, HALF), (DENSE_SENT, TO_ALL))
        self.add(COUNT_DENSE, step, (TO_ALL,), (FROM_ALL,))
        self.add(SUM_DENSE, step, (DENSE_SENT, TO_ALL, FROM_ALL), (DENSE_CAME,))
        reads = (OWNED, HOME_PARTS, DENSE, DENSE_CAME)
        self.add(STEP, step, reads, (GRADIENT, DENSE_GRADIENT), later=(OWNED, DENSE))


def vision_steps(num_ranks: int, num_steps: int) -> Program:
    """The program of some steps; which r each has is an option of the job, not of the program: no row is of another."""
    builder = ProgramBuilder(
        (Axis(AXIS, num_ranks),),
        microbatches=(Microbatch(1, 1.0),),
        paths=(tuple(Hop(rank, rank) for rank in range(num_ranks)),),
        duties=(Duty(MAKE.name), *(Duty(effect.name, parts=num_steps) for effect in COMPUTES)),
        vocabulary=VOCABULARY,
    )
    rows = _StepRows(builder, num_ranks)
    rows.add(MAKE, 0, (), (OWNED, DENSE))
    for step in range(num_steps):
        rows.step(step)
    return builder.build()
