"""A kind has a replay rule, a text form, an executor and a test; a name has an effect and a handler. Over all of both."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from meshwright.ir.core_vocabulary import CORE
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import INDEX_MODES, WHEN_MODES, Effect, Exchange, Kind, Pattern, ValueKind
from meshwright.ir.text import default_stream, from_text, to_text
from meshwright.ir.timing.reference import interpret
from meshwright.ir.timing.replay import HOSTS, replay
from meshwright.ir.timing.wiring import wire
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.specs.error import ProgramError
from tests.ir.random_program import random_general, random_pipeline

X = ValueKind("x", index="none", microbatch=False)


def one_of(kind: Kind) -> Program:
    """A program with one row of this kind (and its other end)."""
    builder = ProgramBuilder([Axis("a", 2)], value_kinds=(X,), paths=((),))
    x = Pattern("x", index="none")
    other = {Kind.SEND: Kind.RECEIVE, Kind.RECEIVE: Kind.SEND}.get(kind, kind)
    for device, own in ((0, kind), (1, other)):
        exchange = Exchange(("a",), (0, 1) if kind == Kind.SEND else (1, 0)) if kind.is_exchange else None
        exchange = Exchange(("a",)) if kind == Kind.COLLECTIVE else exchange
        if own != Kind.RECEIVE:
            builder.add(device, Effect(Kind.COMPUTE, "make", (), (x,)))
        reads, writes = (
            ((x,), ()) if own == Kind.SEND else ((), (x,)) if own == Kind.RECEIVE else ((x,), (x,))
        )
        stream = default_stream(builder.build(), own, exchange)
        builder.add(device, Effect(own, f"{own.name}_IT", reads, writes), stream=stream, exchange=exchange)
    return builder.build()


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_replays_and_has_a_text(kind: Kind) -> None:
    program = one_of(kind)
    assert kind in program.kinds
    for host in HOSTS:
        ones = np.ones(program.num_rows)
        expected = interpret(program, ones, ones / 4, 2, host)
        for one, other in zip(
            expected, replay(wire(program), ones, ones / 4, iterations=2, host=host), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert from_text(to_text(program)).digest() == program.digest()


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_occurs_in_random_programs(kind: Kind) -> None:
    assert any(kind in random_general(Random(seed)).kinds for seed in range(60))


def test_random_programs_use_the_patterns_that_there_are() -> None:
    """Every index mode but `stage`, every condition that our names use, ages, parts, batches, `after`, rings."""
    seen: set[object] = set()
    for seed in range(120):
        program = random_general(Random(seed)) if seed % 2 else random_pipeline(Random(seed))
        seen |= {"batch"} if program.columns.batch.any() else set()
        seen |= {"after"} if len(program.after) else set()
        seen |= {"ring"} if any(kind.ring for kind in program.tables.value_kinds) else set()
        for effect in program.tables.effects:
            for pattern in (*effect.reads, *effect.writes):
                seen |= {pattern.index, pattern.when, ("age", pattern.age > 0)}
    assert seen >= {
        "batch",
        "after",
        "ring",
        ("age", True),
        *(set(INDEX_MODES) - {"stage"}),
        "not_first",
        "not_last",
    }


@pytest.mark.parametrize("mode", WHEN_MODES)
def test_every_condition_holds_where_it_says(mode: str) -> None:
    """A write under each condition on a path of three hops."""
    from meshwright.ir.table import Hop, Microbatch
    from meshwright.ir.timing.dependencies import dependencies

    path = tuple(Hop(k, 0) for k in range(3))
    effect = Effect(Kind.COMPUTE, "c", (), (Pattern("x", index="none", when=mode),))
    builder = ProgramBuilder(
        [Axis("a", 1)], value_kinds=(X,), paths=(path,), microbatches=(Microbatch(1, 1.0),)
    )
    for hop in range(3):
        builder.add(0, effect, stage=hop)
    writes = np.diff(dependencies(builder.build()).write_ptr).tolist()
    expected = {
        "always": [1, 1, 1],
        "not_first": [0, 1, 1],
        "not_last": [1, 1, 0],
        "first": [1, 0, 0],
        "last": [0, 0, 1],
    }
    assert writes == expected[mode]


@pytest.mark.parametrize("mode", INDEX_MODES)
def test_every_index_mode_names_the_value_it_says(mode: str) -> None:
    """Stage 1 at hop 2, whose groups are 1 and 2; offset 1, and part 1 of the row."""
    from meshwright.ir.table import Hop, ParameterGroup
    from meshwright.ir.timing.dependencies import dependencies

    index = {"groups": "group", "place": "group"}.get(mode, mode)
    kind = ValueKind("y", index=index, microbatch=False)
    builder = ProgramBuilder(
        [Axis("a", 1)],
        value_kinds=(kind,),
        paths=((Hop(0, 0), Hop(0, 0), Hop(1, 0)),),
        groups=(ParameterGroup("g0", (0,)), ParameterGroup("g1", (1,)), ParameterGroup("g2", (0, 1))),
    )
    effect = Effect(Kind.COMPUTE, "c", (), (Pattern("y", index=mode, offset=1),))
    builder.add(0, effect, stage=1, hop=2, part=1)
    deps = dependencies(builder.build())
    indices = [(code - int(deps.space.base[0])) // deps.space.parts[0] for code in deps.code.tolist()]
    expected = {"hop": [3], "stage": [2], "groups": [1, 2], "group": [2], "place": [2], "none": [0]}
    assert indices == expected[mode]


@pytest.mark.parametrize("name", sorted(CORE.names))
def test_every_name_of_ours_has_an_effect_and_a_handler(name: str) -> None:
    effect = CORE.names[name].effect
    assert effect.name == name
    assert {p.kind for p in (*effect.reads, *effect.writes)} <= CORE.value_kinds.keys()
    pytest.importorskip("torch")
    from meshwright.executor.handlers.core_handler import CORE_HANDLERS

    assert name in CORE_HANDLERS or effect.kind in CORE_HANDLERS


def test_every_kind_that_moves_has_a_handler() -> None:
    pytest.importorskip("torch")
    from meshwright.executor.handlers.core_handler import CORE_HANDLERS

    assert {Kind.SEND, Kind.RECEIVE, Kind.LOAD, Kind.STORE, Kind.COPY} <= CORE_HANDLERS.keys()


def test_a_name_means_one_thing_in_a_program() -> None:
    assert (CORE | Vocabulary.of(CORE.names["F"])) == CORE
    with pytest.raises(ProgramError, match="the name 'F' means two things"):
        CORE | Vocabulary.of(Name(Effect(Kind.COMPUTE, "F")))
    with pytest.raises(ProgramError, match="the value kind 'activation' means two things"):
        CORE | Vocabulary.of(ValueKind("activation", index="none"))


@pytest.mark.parametrize("name", ["TOKENS_2", "_F", "2F", "F F", ""])
def test_a_name_that_no_text_can_hold_is_refused_where_it_is_declared(name: str) -> None:
    with pytest.raises(ProgramError, match="text cannot hold the name"):
        Vocabulary.of(Name(Effect(Kind.COMPUTE, name)))
