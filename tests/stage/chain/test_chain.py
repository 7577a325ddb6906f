"""Chains: where they are cut, who made what is read, how values lie, and what a segment may not do within itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.ir.layout import COPIED, DUAL, MAPS
from meshwright.specs import ModelSpec
from meshwright.specs.error import ProgramError
from meshwright.specs.model.layers import StageLayers
from meshwright.stage.chain.chain import (
    ENDS,
    INPUT,
    LAYOUTS,
    OUTPUT,
    TRANSPOSES,
    Chain,
    ChainStep,
    Value,
    chain_of,
)
from meshwright.stage.chain.decoder import decoder_chain
from meshwright.stage.chain.degrees import InnerDegrees, StageEnds
from meshwright.stage.chain.step_layout import laid_out

MODEL = ModelSpec.decoder(2, 64, 8, num_kv_heads=4, vocabulary_size=96)
MIDDLE, WHOLE = StageLayers(1, 1, False, False), StageLayers(0, 1, True, True)
TP, SP = InnerDegrees(tp=2), InnerDegrees(tp=2, sequence_parallel=True)
BETWEEN = StageEnds(is_received=True, is_sent=True)


def names(chain: Chain) -> list[str]:
    return ["+".join(step.name for step in segment.steps) for segment in chain.segments]


def test_a_stage_is_cut_where_something_is_sent() -> None:
    assert names(decoder_chain(MODEL, WHOLE, SP)) == [
        "embedding", "positions+attention_norm", "attention", "add+mlp_norm", "mlp", "add+final_norm", "head",
        "exponentials", "split_cross_entropy",
    ]  # fmt: skip
    assert len(names(decoder_chain(MODEL, WHOLE, InnerDegrees()))) == 1, "nothing is sent by one device"


@pytest.mark.parametrize("degrees", [InnerDegrees(), TP, SP, replace(SP, fetches_again=False)], ids=str)
def test_by_operation_attention_and_every_second_product_are_kept(degrees: InnerDegrees) -> None:
    """What a product read is made again by the segment in front of it, but where what was gathered is kept."""
    chain = decoder_chain(MODEL, MIDDLE, replace(degrees, recompute="selective_op"))
    kept = [name for n, name in enumerate(names(chain)) if n not in chain.recomputed]
    assert kept == ["take", "qkv", "causal_attention", "gate_up", "give"]
    again = [names(chain)[value.maker].split("+")[-1] for value in chain.remade.values()]
    assert again == (["attention_norm", "mlp_norm"] if degrees.fetches_again else [])
    assert {value.name for value in chain.remade.values()} <= {"normed"}


def test_steps_are_cut_around_those_that_are_named() -> None:
    steps = [ChainStep(name, ENDS, (INPUT,), (name,)) for name in "abcd"]
    assert names(chain_of(steps, frozenset("b"))) == ["a", "b", "c+d"]
    assert names(chain_of(steps)) == ["a+b+c+d"]


def test_a_value_is_numbered_by_the_segment_that_made_it() -> None:
    chain = decoder_chain(MODEL, WHOLE, SP)
    add = chain.segments[3]
    # the stream of the segment in front of attention, and the sum that was delivered behind attention
    assert add.reads == (Value("residual", 1), Value("summed", 2))
    assert add.writes == ("residual", "normed")
    assert chain.num_readers[Value("residual", 1)] == 1, "the norm beside the addition is of the same segment"
    assert [each.move.algorithm for each in chain.behind(1)] == ["all_gather"]
    assert [each.move.algorithm for each in chain.behind(2)] == ["reduce_scatter"]
    assert not chain.behind(-1)


def test_an_end_that_is_received_is_collected_where_all_have_the_same() -> None:
    chain = decoder_chain(MODEL, MIDDLE, TP, BETWEEN)
    (collected,), (shared,) = chain.behind(-1), chain.behind(len(chain.segments) - 1)
    assert (collected.move.algorithm, collected.read) == ("collect", Value(INPUT, -1))
    assert (shared.move.algorithm, shared.move.write) == ("share", OUTPUT)
    for degrees in (SP, InnerDegrees()):
        assert all(
            each.move.algorithm not in ("collect", "share")
            for each in decoder_chain(MODEL, MIDDLE, degrees, BETWEEN).deliveries
        )


@pytest.mark.parametrize(
    ("degrees", "stream", "shared"),
    [
        (TP, "tp:copied", "tp:shared"),
        (SP, "tp:split(tokens)", "tp:shared"),
        (
            InnerDegrees(tp=2, cp=2, context="all_gather"),
            "tp:copied cp:split(tokens)",
            "tp:shared cp:split(tokens)",
        ),
        (
            InnerDegrees(tp=2, sequence_parallel=True, cp=2, context="ulysses"),
            "tp:split(tokens) cp:split(tokens)",
            "tp:shared cp:split(tokens)",
        ),
    ],
)
@pytest.mark.parametrize("layers", [WHOLE, MIDDLE])
def test_exchanges_make_what_their_readers_need(
    degrees: InnerDegrees, stream: str, shared: str, layers: StageLayers
) -> None:
    """Steps say what they need, exchanges what they deliver: one does not come from the other, and both are the same."""
    chain = decoder_chain(MODEL, layers, degrees, BETWEEN)
    read = {
        value: how
        for segment in chain.segments
        for value, how in zip(segment.reads, segment.read_layouts, strict=True)
    }
    assert {how for value, how in read.items() if value.name in ("residual", "summed")} == {stream}
    assert {how for value, how in read.items() if value.name == "entered"} == {shared}
    for value, how in read.items():
        assert chain.layouts[value] == how, value
    for each in chain.deliveries:
        if each.move.algorithm != "collect":  # of which a stage on another device gives parts
            assert chain.layouts[each.read] == each.layout(chain.layouts[each.read], is_write=False), each


def test_a_transpose_maps_the_duals() -> None:
    operations = {
        "collect": "all_gather", "routed": "all_to_all", "gather_rows": "all_gather", "scatter_rows": "reduce_scatter",
    }  # fmt: skip
    for algorithm, (before, behind) in LAYOUTS.items():
        back, transpose = (DUAL[behind], DUAL[before]), TRANSPOSES[algorithm]
        if transpose:
            assert back in MAPS[operations.get(transpose, transpose)], algorithm
        elif algorithm == "all_reduce":
            assert back == (COPIED, COPIED), "the gradient of the sum is that of every term"


def test_a_term_of_a_sum_is_not_read_as_the_sum_within_a_segment() -> None:
    steps = [
        laid_out(ChainStep("attention", 0, (INPUT,), ("partial",)), {"tp": "copied"}),
        laid_out(ChainStep("add", 0, ("partial",), ("residual",)), {"tp": "copied"}),
    ]
    with pytest.raises(
        ProgramError, match=r"step add of block 0 reads partial as tp:copied, .* it is tp:partial"
    ):
        chain_of(steps)


def test_what_is_copied_is_not_entered_within_a_segment() -> None:
    """Its gradient would be a term of a sum that nobody adds up."""
    steps = [
        laid_out(ChainStep("mlp_norm", 0, (INPUT,), ("normed",)), {"tp": "copied"}),
        laid_out(ChainStep("mlp", 0, ("normed",), ("partial",)), {"tp": "copied"}),
    ]
    with pytest.raises(ProgramError, match="reads normed as tp:shared"):
        chain_of(steps)
