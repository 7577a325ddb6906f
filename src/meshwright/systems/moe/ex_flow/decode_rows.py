"""A prompt and some decoding steps of a decoder with experts, as a program: with two all-to-alls a layer, or with one.

With two a token comes home behind its expert, where its contexts are. With one it stays where its expert is: keys and values
of all contexts are on every device, gathered once behind the prompt and, of the new tokens, once behind every step.
"""

from __future__ import annotations

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Exchange, Hop, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary

AXIS, STREAM = "ep", "gather"
PROMPT = "PROMPT_"  # in front of the names of exchanges of the prompt, so that their bytes are counted apart


def _kind(name: str, carried: bool = False) -> ValueKind:
    return ValueKind(name, index="none", microbatch=False, carried=carried)


# Parts are numbers of a step, or of a step and a layer. Rows are tokens, each with its number in front.
OUTPUTS = _kind("step_outputs", carried=True)
TOKENS, CONTEXTS, NEW, PACKED, GATHERED = map(
    _kind, ("token_rows", "contexts", "new_contexts", "packed_contexts", "gathered_contexts")
)
SORTED, CAME, MADE = map(_kind, ("sorted_rows", "came_rows", "made_rows"))
LEAVING, ARRIVING, TO_ALL, FROM_ALL = map(
    _kind, ("leaving_rows", "arriving_rows", "contexts_to_all", "contexts_from_all")
)
KINDS = (
    *(OUTPUTS, TOKENS, CONTEXTS, NEW, PACKED, GATHERED, SORTED, CAME, MADE),
    *(LEAVING, ARRIVING, TO_ALL, FROM_ALL),
)
BEGIN, ATTEND, EXPERTS, PACK, KEEP, CHOOSE = (
    Effect(Kind.COMPUTE, name)
    for name in (
        "BEGIN_TOKENS",
        "ATTEND_CONTEXTS",
        "EXPERTS_HERE",
        "PACK_CONTEXTS",
        "KEEP_CONTEXTS",
        "CHOOSE_TOKENS",
    )
)
COUNT, SEND, RETURN, COUNT_NEW, GATHER = (
    Effect(Kind.COLLECTIVE, name)
    for name in ("COUNT_ROWS", "SEND_ROWS", "RETURN_ROWS", "COUNT_CONTEXTS", "GATHER_CONTEXTS")
)
COMPUTES, EXCHANGES = (BEGIN, ATTEND, EXPERTS, PACK, KEEP, CHOOSE), (COUNT, SEND, RETURN, COUNT_NEW, GATHER)


def of_prompt(effect: Effect) -> Effect:
    """The exchange under the name that it has in the prompt."""
    return effect._replace(name=PROMPT + effect.name)


VOCABULARY = Vocabulary.of(
    *KINDS,
    *(Name(effect, "path") for effect in COMPUTES),
    *(Name(each) for effect in EXCHANGES for each in (effect, of_prompt(effect))),
    owner="ex_flow",
)


def _part(kind: ValueKind, number: int) -> Pattern:
    return Pattern(kind.name, index="none", part_offset=number)


class DecodeRows:
    """The rows of all ranks, step by step; step 0 is the prompt, whose tokens come home behind every expert."""

    def __init__(self, builder: ProgramBuilder, num_ranks: int, num_layers: int, stays: bool) -> None:
        self.builder, self.num_ranks, self.num_layers, self.stays = builder, num_ranks, num_layers, stays

    def begin(self) -> None:
        """Tokens of the prompts at home, and contexts that have nothing."""
        self._add(BEGIN, 0, (), (_part(TOKENS, 0), _part(CONTEXTS, 0)))

    def step(self, step: int, is_last: bool) -> None:
        """All layers, then what contexts there are for the next step, and its tokens."""
        for layer in range(self.num_layers):
            self._layer(step, layer)
        new = tuple(_part(NEW, step * self.num_layers + layer) for layer in range(self.num_layers))
        self._add(PACK, step, new, (_part(PACKED, step), _part(TO_ALL, step)))
        came = _part(PACKED, step)
        if self.stays:
            to_all, from_all, came = _part(TO_ALL, step), _part(FROM_ALL, step), _part(GATHERED, step)
            self._exchange(COUNT_NEW, step, (to_all,), from_all, step)
            self._exchange(GATHER, step, (_part(PACKED, step), to_all, from_all), came, step)
        self._add(KEEP, step, (_part(CONTEXTS, step), came), (_part(CONTEXTS, step + 1),))
        chosen = (_part(OUTPUTS, step), *([] if is_last else [self._tokens(step + 1, 0)]))
        self._add(CHOOSE, step, (self._tokens(step, self.num_layers),), chosen)

    def _layer(self, step: int, layer: int) -> None:
        """Attention where tokens are, rows to their experts, and home where they do not stay."""
        at, reads = step * self.num_layers + layer, (self._tokens(step, layer), _part(CONTEXTS, step))
        leaving, arriving, behind = _part(LEAVING, at), _part(ARRIVING, at), self._tokens(step, layer + 1)
        comes_home = step == 0 or not self.stays
        self._add(ATTEND, at, reads, (_part(SORTED, at), leaving, _part(NEW, at)))
        self._exchange(COUNT, at, (leaving,), arriving, step)
        self._exchange(SEND, at, (_part(SORTED, at), leaving, arriving), _part(CAME, at), step)
        self._add(EXPERTS, at, (_part(CAME, at),), (_part(MADE, at) if comes_home else behind,))
        if comes_home:
            self._exchange(RETURN, at, (_part(MADE, at), arriving, leaving), behind, step)

    def _tokens(self, step: int, layer: int) -> Pattern:
        return _part(TOKENS, step * (self.num_layers + 1) + layer)

    def _add(
        self, effect: Effect, part: int, reads: tuple[Pattern, ...], writes: tuple[Pattern, ...]
    ) -> None:
        for rank in range(self.num_ranks):
            self.builder.add(rank, effect._replace(reads=reads, writes=writes), stage=rank, part=part)

    def _exchange(
        self, effect: Effect, part: int, reads: tuple[Pattern, ...], writes: Pattern, step: int
    ) -> None:
        named = (effect if step else of_prompt(effect))._replace(reads=reads, writes=(writes,))
        for rank in range(self.num_ranks):
            self.builder.add(
                rank, named, stage=rank, hop=0, part=part, stream=STREAM, exchange=Exchange((AXIS,))
            )


def decoding(num_ranks: int, num_layers: int, num_steps: int, stays: bool) -> Program:
    """A prompt and so many steps behind it; ``stays``: tokens stay where their expert is, so that a layer of a step has one
    all-to-all."""
    steps = 1 + num_steps
    by_layer = tuple(Duty(effect.name, parts=steps * num_layers) for effect in (ATTEND, EXPERTS))
    by_step = tuple(Duty(effect.name, parts=steps) for effect in (PACK, KEEP, CHOOSE))
    builder = ProgramBuilder(
        (Axis(AXIS, num_ranks),),
        microbatches=(Microbatch(1, 1.0),),
        paths=(tuple(Hop(rank, rank) for rank in range(num_ranks)),),
        duties=(Duty(BEGIN.name), *by_layer, *by_step),
        vocabulary=VOCABULARY,
    )
    rows = DecodeRows(builder, num_ranks, num_layers, stays)
    rows.begin()
    for step in range(steps):
        rows.step(step, is_last=step == num_steps)
    return builder.build()
