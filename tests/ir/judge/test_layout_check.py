"""Layouts in `verify`: programs that exchange rightly pass, and every wrong reading, sum and mapping is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright.ir.judge.verify as verify_module
from meshwright.ir.core_vocabulary import PARAMETERS
from meshwright.ir.judge.verify import verify
from meshwright.ir.kernel import kernel
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Hop, Kind, Microbatch, ParameterGroup, Pattern, ValueKind
from meshwright.ir.text import from_text, to_text
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.specs.error import ProgramError

KINDS = (
    *(ValueKind(name, index="none") for name in ("taken", "made")),
    ValueKind("sum", index="none", accumulates=True),
)


def at(kind: str, layout: str) -> Pattern:
    return Pattern(kind, index="none", layout=layout)


def compute(name: str, reads: tuple[Pattern, ...], writes: tuple[Pattern, ...]) -> Effect:
    return Effect(Kind.COMPUTE, name, reads, writes)


def built(*rows: tuple[Effect, Exchange | None], tp: int = 2, cp: int = 2, microbatches: int = 1) -> Program:
    """The rows, for every microbatch, on one list of a mesh whose axes are collapsed."""
    axes = (Axis("tp", tp, False), Axis("cp", cp, False))
    names = [Name(effect, "path" if exchange is None else "") for effect, exchange in rows]
    builder = ProgramBuilder(
        axes,
        vocabulary=Vocabulary.of(*dict.fromkeys(names), *KINDS),
        microbatches=(Microbatch(1, 1.0 / microbatches),) * microbatches,
        groups=(ParameterGroup("g", (0,)),),
        paths=((Hop(0, 0),),),
    )
    for microbatch in range(microbatches):
        for effect, exchange in rows:
            stream = "compute" if exchange is None else "reduce"
            builder.add(0, effect, exchange=exchange, stream=stream, microbatch=microbatch)
    return builder.build()


def exchanging(
    algorithm: str, taken: str, made: str, needs: str, *, axes: tuple[str, ...] = ("tp",), **sizes: int
) -> Program:
    """A compute makes a value of one layout, an exchange takes it, another compute reads what that made."""
    move = Effect(Kind.COLLECTIVE, "move", (at("taken", taken),), (at("made", made),))
    return built(
        (compute("first", (), (at("taken", taken),)), None),
        (move, Exchange(axes, algorithm=algorithm)),
        (compute("second", (at("made", needs),), ()), None),
        **sizes,
    )


def reading(has: str, needs: str) -> Program:
    return built(
        (compute("first", (), (at("taken", has),)), None),
        (compute("second", (at("taken", needs),), ()), None),
    )


@pytest.mark.parametrize(
    "algorithm, taken, made",
    [
        ("all_gather", "tp:split", "tp:shared"),
        ("reduce_scatter", "tp:partial", "tp:split"),
        ("all_reduce", "tp:partial", "tp:copied"),
        ("ring", "tp:partial", "tp:copied"),
        ("all_reduce.two_level", "tp:partial", "tp:split"),
        ("all_to_all.top8", "tp:split(tokens)", "tp:split(experts)"),
        ("all_gather", "tp:split(heads)", "tp:copied"),
        ("all_gather", "tp:split cp:partial", "tp:shared cp:partial"),
    ],
)
def test_an_exchange_that_maps_what_it_says_passes(algorithm: str, taken: str, made: str) -> None:
    verify(exchanging(algorithm, taken, made, made))


@pytest.mark.parametrize(
    "algorithm, taken, made",
    [
        ("all_gather", "tp:partial", "tp:split"),  # where a reduce_scatter belongs
        ("reduce_scatter", "tp:split", "tp:shared"),
        ("all_reduce", "tp:partial", "tp:shared"),
        ("all_reduce", "tp:partial", "tp:partial"),
        ("all_gather", "tp:copied", "tp:shared"),
        ("all_to_all", "tp:partial", "tp:partial"),
        ("all_to_all", "tp:split(tokens)", "tp:split(tokens)"),
        ("all_to_all", "tp:split", "tp:split"),
        ("send_receive", "tp:split(tokens)", "tp:split(heads)"),
        ("all_gather", "tp:split(tokens)+1", "tp:shared"),  # in another order than it is numbered
        ("all_gather", "cp:split", "cp:shared"),  # along an axis that is not the exchange's
        ("all_gather", "tp:split cp:split", "tp:shared cp:copied"),
        ("all_gather", "", "tp:shared"),  # of what lies as nobody says
    ],
)
def test_an_exchange_that_maps_something_else_is_refused(algorithm: str, taken: str, made: str) -> None:
    with pytest.raises(ProgramError, match=r"0move0 takes a taken .* makes a made .* maps"):
        verify(exchanging(algorithm, taken, made, ""))


def test_an_exchange_along_one_axis_too_many_or_too_few_is_refused() -> None:
    verify(exchanging("all_reduce", "tp:partial", "tp:copied", "tp:copied"))
    with pytest.raises(ProgramError, match="cp:copied -> cp:copied|tp:partial -> tp:partial"):
        verify(exchanging("all_reduce", "tp:partial", "tp:copied", "tp:copied", axes=("cp",)))
    with pytest.raises(ProgramError, match="takes a taken cp:partial"):
        verify(exchanging("all_reduce", "tp:partial cp:partial", "tp:copied cp:copied", ""))


@pytest.mark.parametrize(
    "has, needs",
    [
        ("tp:split", "tp:split"),
        ("tp:copied", "tp:shared"),
        ("", "tp:copied"),
        ("", "tp:shared"),
        ("tp:partial", ""),
        ("tp:split cp:partial", "cp:partial"),
    ],
)
def test_a_read_that_finds_its_layout_passes(has: str, needs: str) -> None:
    verify(reading(has, needs))


@pytest.mark.parametrize(
    "has, needs, words",
    [
        ("tp:partial", "tp:copied", "0second0 reads a taken as tp:copied, but first writes it tp:partial"),
        ("tp:split", "tp:shared", "as tp:shared, but first writes it tp:split"),
        ("tp:shared", "tp:copied", "as tp:copied, but first writes it tp:shared"),
        ("", "tp:split", "as tp:split, but first writes it tp:copied"),
        ("tp:split(heads)", "tp:split(tokens)", r"tp:split\(tokens\), but first writes it tp:split\(heads\)"),
        ("tp:split(tokens)+1", "tp:split(tokens)", r"but first writes it tp:split\(tokens\)\+1"),
        ("tp:split", "tp:split cp:partial", "as cp:partial, but first writes it cp:copied"),
    ],
)
def test_a_read_of_another_layout_is_refused(has: str, needs: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        verify(reading(has, needs))


def test_along_an_axis_of_one_device_all_layouts_are_one() -> None:
    verify(exchanging("all_gather", "tp:partial", "tp:split", "tp:copied", tp=1))


def test_contributions_to_a_sum_have_one_layout() -> None:
    def added(first: str, second: str) -> Program:
        return built(
            (compute("first", (), (at("sum", first),)), None),
            (compute("second", (), (at("sum", second),)), None),
        )

    verify(added("tp:partial", "tp:partial"))
    verify(added("tp:copied", ""))
    with pytest.raises(
        ProgramError, match="0second0 adds to a sum as tp:copied, but first added to it tp:partial"
    ):
        verify(added("tp:partial", "tp:copied"))


def test_what_nothing_writes_is_taken_for_one_thing() -> None:
    def frozen(first: str, second: str) -> Program:
        reads = [PARAMETERS._replace(layout=layout) for layout in (first, second)]
        return built((compute("first", (reads[0],), ()), None), (compute("second", (reads[1],), ()), None))

    verify(frozen("tp:split", "tp:split"))
    verify(frozen("tp:shared", "tp:copied"))
    with pytest.raises(
        ProgramError, match="as tp:copied, but nothing writes it, and first takes it for tp:split"
    ):
        verify(frozen("tp:split", "tp:copied"))


def test_what_the_iteration_before_wrote_has_the_layout_that_it_gave() -> None:
    def stepped(made: str) -> Program:
        needs = PARAMETERS._replace(layout="tp:copied")
        write = PARAMETERS._replace(layout=made)
        return built((compute("first", (needs,), ()), None), (compute("step", (), (write,)), None))

    verify(stepped("tp:copied"))
    with pytest.raises(
        ProgramError, match="0first0 reads a parameter as tp:copied, but step writes it tp:split"
    ):
        verify(stepped("tp:split"))


def messages(sent: str, received: str) -> Program:
    """Two devices of a materialised axis: one sends what it made to the other."""
    send = Effect(Kind.SEND, "SEND_X", (at("taken", sent),))
    receive = Effect(Kind.RECEIVE, "RECV_X", (), (at("taken", received),))
    made = compute("first", (), (at("taken", sent),))
    words = Vocabulary.of(Name(made, "some"), Name(send), Name(receive), *KINDS)
    builder = ProgramBuilder(
        (Axis("pp", 2), Axis("tp", 2, False)), vocabulary=words, microbatches=(Microbatch(1, 1.0),),
        paths=((Hop(0, 0),),),
    )  # fmt: skip
    builder.add(0, made)
    builder.add(0, send, exchange=Exchange(("pp",), (0, 1)), stream="send/pp1")
    builder.add(1, receive, exchange=Exchange(("pp",), (0, 1)), stream="receive/pp0")
    return builder.build()


@pytest.mark.parametrize("sent, received", [("tp:split", "tp:copied"), ("tp:partial", ""), ("pp:copied", "")])
def test_a_message_keeps_the_layouts_along_other_axes(sent: str, received: str) -> None:
    verify(messages("tp:split", "tp:split"))
    verify(messages("tp:split pp:split", "tp:split pp:split"))
    with pytest.raises(ProgramError, match="its exchange by message along pp maps"):
        verify(messages(sent, received))


def ring(shift: int, made: str) -> Program:
    """Every device of a ring of four sends its part on."""
    send = Effect(Kind.SEND, "SEND_X", (at("taken", "cp:split(tokens)+3"),))
    receive = Effect(Kind.RECEIVE, "RECV_X", (), (at("made", made),), at("taken", ""))
    exchange = Exchange(("cp",), shift=shift)
    first = compute("first", (), (at("taken", "cp:split(tokens)+3"),))
    words = Vocabulary.of(Name(first, "some"), Name(send), Name(receive), *KINDS)
    builder = ProgramBuilder((Axis("cp", 4, False),), vocabulary=words, microbatches=(Microbatch(1, 1.0),))
    builder.add(0, first)
    builder.add(0, send, exchange=exchange, stream="send/cp")
    builder.add(0, receive, exchange=exchange, stream="receive/cp")
    return builder.build()


@pytest.mark.parametrize("shift, made", [(1, ""), (2, "+1"), (3, "+2"), (-1, "+2")])
def test_a_message_around_a_ring_turns_what_is_split(shift: int, made: str) -> None:
    verify(ring(shift, f"cp:split(tokens){made}"))
    for wrong in ("cp:split(tokens)+3", f"cp:split(heads){made}"):
        with pytest.raises(ProgramError, match=rf"cp:split -> cp:split\+{shift % 4}"):
            verify(ring(shift, wrong))


def test_a_layout_along_an_axis_that_is_not_there_is_refused() -> None:
    with pytest.raises(ProgramError, match="no axis 'ep'"):
        verify(reading("ep:split", ""))


def test_large_programs_are_checked_as_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled walk finds what the plain one does."""
    monkeypatch.setattr(kernel, "SMALL_ROWS", 0)
    num = 20
    right = built(
        (compute("first", (), (at("taken", "tp:split"),)), None),
        (compute("second", (at("taken", "tp:split"),), ()), None),
        (compute("third", (at("taken", "tp:split"),), ()), None),
        microbatches=num,
    )
    verify(right)
    wrong = right.tables.effects[2]._replace(reads=(at("taken", "tp:copied"),))
    with pytest.raises(ProgramError, match="0third0 reads a taken as tp:copied"):
        verify(right.with_tables(effects=(*right.tables.effects[:2], wrong)))
    last = np.where(np.arange(right.num_rows) == right.num_rows - 1, 3, right.columns.effect)
    one = right.with_tables(effects=(*right.tables.effects, wrong)).with_columns(effect=last)
    with pytest.raises(ProgramError, match=f"0third{num - 1} reads a taken"):
        verify(one)


@pytest.mark.parametrize("wrong", ["reads", "exchanges"])
def test_nothing_else_refuses_these(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of layouts both pass: so it is that which refuses them."""
    program = (
        reading("tp:partial", "tp:copied")
        if wrong == "reads"
        else exchanging("all_gather", "tp:partial", "tp:split", "tp:split")
    )
    with pytest.raises(ProgramError):
        verify(program)
    monkeypatch.setattr(verify_module, "check_layouts", lambda _: None)
    verify(program)


def test_texts_hold_layouts_and_those_without_are_what_they_were() -> None:
    program = exchanging("all_gather", "tp:split cp:partial", "tp:shared cp:partial", "tp:shared")
    text = to_text(program)
    assert '"tp:split cp:partial"' in text
    read = from_text(text)
    assert to_text(read) == text and read.digest() == program.digest()
    plain = Pattern("activation", when="not_first")
    assert "layout" not in repr(plain) and "layout='tp:split'" in repr(plain._replace(layout="tp:split"))
    assert program.digest() != exchanging("all_gather", "tp:split", "tp:shared", "tp:shared").digest()


def test_a_pattern_of_several_groups_says_a_layout_for_each() -> None:
    def stepped(made: str) -> Program:
        needs = PARAMETERS._replace(layout="tp:split | cp:split")
        program = built((compute("first", (needs,), (PARAMETERS._replace(layout=made),)), None))
        groups = (ParameterGroup("a", (0,)), ParameterGroup("b", (0,)))
        return program.with_tables(groups=groups)

    verify(stepped("tp:split | cp:split"))
    assert (
        from_text(to_text(stepped("tp:split | cp:split"))).digest() == stepped("tp:split | cp:split").digest()
    )
    with pytest.raises(ProgramError, match="reads a parameter as cp:split, but first writes it cp:copied"):
        verify(stepped("tp:split"))
    with pytest.raises(ProgramError, match="for each of several groups, and its stage has 2"):
        verify(stepped("tp:split | cp:split | cp:split"))
    with pytest.raises(ProgramError, match="says '.'"):
        verify(reading("tp:split | tp:split", ""))
