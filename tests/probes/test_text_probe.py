"""Programs that exist as text only: a path that visits a stage twice, an encoder-decoder edge, a tied embedding."""

from __future__ import annotations

import pytest

from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import ProgramError
from tests.golden.text import FOLDER
from tests.probes.timing import trace_of

NAMES = ("stage_visited_twice", "encoder_decoder", "tied_embedding")


def text_of(name: str) -> str:
    return (FOLDER / f"probe_{name}.txt").read_text()


def changed(name: str, old: str, new: str) -> Program:
    """The program of the text with one place changed."""
    text = text_of(name)
    assert old in text
    return from_text(text.replace(old, new, 1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("host", HOSTS)
def test_they_verify_and_are_their_own_text(name: str, host: str) -> None:
    program = from_text(text_of(name))
    verify(program, host)
    assert to_text(program) == text_of(name)
    assert outputs(program)


def test_a_stage_that_is_visited_twice_computes_at_both_hops() -> None:
    program = from_text(text_of("stage_visited_twice"))
    forwards = [(view.text, view.hop) for view in program.instructions(0) if view.name == "F"]
    assert sorted(forwards) == [("0F0", 0), ("0F0", 2), ("0F1", 0), ("0F1", 2)]
    assert trace_of(program, {"F": 1.0, "B": 2.0}).end_s.max() == pytest.approx(12.0)  # device 0 never idles
    with pytest.raises(ProgramError, match="device 0"):
        verify(changed("stage_visited_twice", " 0B0 ", " "))
    with pytest.raises(ProgramError, match="second time|reads|runs before"):
        verify(changed("stage_visited_twice", "0F0{hop=2}", "0F0"))


def test_the_encoder_needs_the_gradients_of_both_decoders() -> None:
    with pytest.raises(ProgramError, match="0B0"):
        verify(changed("encoder_decoder", " 0RECV_ENCODED_B0.1{exchange=2}", ""))
    with pytest.raises(ProgramError, match="2F0"):
        verify(changed("encoder_decoder", " 2RECV_ENCODED0{exchange=1} 2F0", " 2F0"))
    with pytest.raises(ProgramError, match="microbatch 1, part 1"):
        verify(changed("encoder_decoder", " 0RECV_ENCODED_B1.1{exchange=2}", " 0RECV_ENCODED_B1{exchange=2}"))
    trace = trace_of(from_text(text_of("encoder_decoder")), {"F": 1.0, "B": 2.0})
    assert trace.end_s.max() == pytest.approx(
        12.0
    )  # device 2 computes F and B of both from 2 to 8, B of device 1 and 0 follow


def test_the_tied_embedding_is_reduced_between_its_stages_and_nothing_else_is() -> None:
    program = from_text(text_of("tied_embedding"))
    reductions = [
        (view.device, view.part)
        for d in (0, 1)
        for view in program.instructions(d)
        if view.name == "REDUCE_GRAD"
    ]
    assert reductions == [(0, 1), (1, 1)]
    with pytest.raises(ProgramError):
        verify(changed("tied_embedding", " 1REDUCE_GRAD.1{exchange=0}", ""))
    with pytest.raises(ProgramError):
        verify(changed("tied_embedding", " 0REDUCE_GRAD.1{exchange=0}", " 0REDUCE_GRAD{exchange=0}"))
