"""Token parts as rows: their order, what is due of them, bytes and works of uneven ones, and what cannot be cut; chunks of
sequences, which read what those before them made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.beside import num_beside
from tests.golden.text import check_golden
from tests.ir.mutation import check_refused
from tests.lowering.plans import NamedWork, plan
from tests.lowering.segment.segment_program import (
    ONE_LAYER,
    SEQUENCE_PARALLEL,
    TP,
    TWO_LAYERS,
    segment_program,
)

from meshwright.costs.cost import Cost, Flow
from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Work
from meshwright.ir.text import from_text, to_text
from meshwright.ir.timing.wiring import wire
from meshwright.ir.value_space import codes_of, effect_of, value_space
from meshwright.lowering.lower import lower
from meshwright.lowering.order import with_works
from meshwright.schedules import registered
from meshwright.simulator.pricing import price
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.error import PlanError, ProgramError

CUTS = [("3:1", 4), (2, 2)]
LAYOUTS: list[dict[str, Any]] = [
    TP,
    {**SEQUENCE_PARALLEL, "pp": 2, "split_backward": True},
    {"tp": 2, "recompute": "full", "dp": 2, "sharding": "zero3"},
    {"tp": 2, "recompute": "selective"},
    {"cp": 2, "pp": 2},
    {"cp": 4, "recompute": "selective"},
    {"cp": 2, "context": "ulysses"},
    {"pp": 2},
]


def in_parts(token_parts: int | str, size: int, **choices: Any) -> Program:
    """Of microbatches of so many samples."""
    batch = 4 * size * int(choices.get("dp", 1))
    return segment_program(TWO_LAYERS, batch=batch, microbatch_size=size, token_parts=token_parts, **choices)


def in_chunks(token_parts: int | str, **choices: Any) -> Program:
    """Of sequences of 64 tokens, one a microbatch."""
    return in_parts(token_parts, 1, parts_of="sequence", **choices)


def attention_of(program: Program, name: str) -> list[tuple[str, tuple[int, ...], int, float]]:
    """Attention's kernels of the rows of a name in list 0: the row, sequence and whether it is causal, how many, FLOPs."""
    rows = [row for row in program.instructions(0) if row.name == name and row.work is not None]
    return [
        (row.text, (each.shape[3], each.shape[5]), each.count, each.total_flops)
        for row in rows
        for each in row.work.operators
        if each.kind == "attention"
    ]


def test_parts_take_turns_forward_rising_and_backward_falling() -> None:
    texts = [row.text for row in in_parts(2, 2, **TP).instructions(0)]
    assert texts[:4] == ["0F0", "0ALL_REDUCE0", "0F0.1", "0ALL_REDUCE0.1"]
    assert texts[4:10] == ["1F0", "2F0", "2ALL_REDUCE0", "1F0.1", "2F0.1", "2ALL_REDUCE0.1"]
    assert texts.index("2B0.1") < texts.index("2B0") < texts.index("1B0.1") < texts.index("1B0")


@pytest.mark.parametrize("degree", [2, 4])
def test_steps_of_a_ring_take_turns(degree: int) -> None:
    texts = [row.text for row in in_parts(2, 2, cp=degree).instructions(0) if row.microbatch == 0]
    steps = [text for text in texts if text.startswith("1ATTEND0")]
    turns = [f".{part * degree + step}" for step in range(degree) for part in range(2)]
    assert steps == ["1ATTEND0" + turn.replace(".0", "") for turn in turns]


def test_one_part_is_the_program_of_none() -> None:
    whole = segment_program(TWO_LAYERS, batch=8, microbatch_size=2, **TP)
    assert in_parts(1, 2, **TP).digest() == whole.digest()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_programs_of_parts_are_whole(cut: tuple[int | str, int], layout: dict[str, Any]) -> None:
    program = in_parts(*cut, **layout)
    for host in ("asynchronous", "in_order"):
        verify(program, host=host)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_uneven_parts_have_the_work_and_the_bytes_of_the_whole(layout: dict[str, Any]) -> None:
    cut, whole = in_parts("3:1", 4, **layout), in_parts(1, 4, **layout)
    for name in ("F", "B", "I", "W"):
        assert flops(cut, name) == pytest.approx(flops(whole, name), rel=1e-12), name
    sizes = sorted({work.shape[0] for work in cut.tables.works if work.name == "F"})
    assert sizes == [1, 3]
    found, wanted = moved_bytes(cut), moved_bytes(whole)
    assert found == pytest.approx(wanted, rel=1e-12)


def flops(program: Program, name: str) -> float:
    rows = [program.row(i) for i in range(program.num_rows)]
    of_relay = {"F": ("ATTEND",), "B": ("ATTEND_BACKWARD",)}.get(name, ())
    return sum(row.work.flops for row in rows if row.work is not None and row.name in (name, *of_relay))


def moved_bytes(program: Program) -> float:
    wiring = wire(program)
    prices = price(wiring, NamedWork(), ABytePerSecond(), None)
    is_exchange = program.columns.exchange >= 0
    return float(prices.seconds[prices.cost_of_row][is_exchange].sum())


class ABytePerSecond:
    """Exchanges by their bytes."""

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        return Cost(num_bytes, compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        return ()


class Alike:
    """A compute takes a second, an exchange two."""

    def cost(self, work: Work, device: Any = None) -> Cost:
        return Cost(1.0)

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        return Cost(2.0, compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        return ()


@pytest.mark.parametrize("host", ["asynchronous", "in_order"])
@pytest.mark.parametrize("layout", [TP, {"tp": 2, "pp": 2}], ids=str)
def test_exchanges_run_beside_computes_of_another_part_alone(layout: dict[str, Any], host: str) -> None:
    """One microbatch: nothing else is there to run beside."""
    for parts in (1, 2):
        program = segment_program(TWO_LAYERS, batch=2, microbatch_size=2, token_parts=parts, **layout)
        program = program.expand("tp")
        costs = Alike()
        trace = simulate_program(program, costs, costs, host=host)
        found = [num_beside(trace, device) for device in range(program.num_lists)]
        assert found == [0] * len(found) if parts == 1 else min(found) >= 8, found


CHUNK_LAYOUTS = [each for each in LAYOUTS if "cp" not in each] + [{"tp": 2, "recompute": "selective_op"}]


@pytest.mark.parametrize("layout", CHUNK_LAYOUTS, ids=str)
@pytest.mark.parametrize("token_parts", [2, "1:3", "1:2:1"])
def test_programs_of_chunks_are_whole_and_do_what_is_done_of_sequences(
    token_parts: int | str, layout: dict[str, Any]
) -> None:
    cut, whole = in_chunks(token_parts, **layout), in_parts(1, 1, **layout)
    for host in ("asynchronous", "in_order"):
        verify(cut, host=host)
    for name in ("F", "B", "I", "W"):
        assert flops(cut, name) == pytest.approx(flops(whole, name), rel=1e-12), name
    assert moved_bytes(cut) == pytest.approx(moved_bytes(whole), rel=1e-12)


def test_a_chunk_reads_keys_and_values_of_all_up_to_it_and_adds_to_their_gradients() -> None:
    program = in_chunks("1:2:1", **TP)
    space = value_space(program)
    for name, kind, patterns in (("F", "block", "reads"), ("B", "block_gradient", "writes")):
        found = []
        for i in range(int(program.offsets[1])):
            row, effect = program.row(i), effect_of(program, i)
            codes = codes_of(program, i, getattr(effect, patterns), space)
            values = [space.describe(code, program) for code in codes]
            parts = [
                int(v.partition("part ")[2].rstrip(")") or 0) for v in values if v.startswith(f"{kind}(")
            ]
            others = row.name == name and not any(p.kind == kind and p.offset == 0 for p in effect.writes)
            found += [(row.part, parts)] if others and parts and row.microbatch == 0 else []
        order = [2, 1, 0] if name == "B" else [0, 1, 2]
        assert found == [(part, list(range(part + 1))) for part in order * 2], name


@pytest.mark.parametrize("name", ["F", "B"])
def test_attention_of_a_chunk_is_a_rectangle_and_a_triangle(name: str) -> None:
    """Of 64 tokens: chunks of 16 and 48, whose rectangle is three squares."""
    numbers = 2 * (2 if name == "F" else 5) * 4 * TWO_LAYERS.attention.head_dim  # of 4 heads on a device
    kernels = attention_of(in_chunks("1:3", **TP), name)[: 3 if name == "F" else None][:3]
    triangle, square = numbers * 16 * 17 / 2, numbers * 16 * 16
    wanted = [((16, 1), 1, triangle), ((48, 1), 1, numbers * 48 * 49 / 2), ((16, 0), 3, 3 * square)]
    assert sorted(each[1:] for each in kernels) == sorted(wanted)


def test_a_window_leaves_pairs_of_the_rectangle_out() -> None:
    """Of chunks of 32 tokens and a window of 8 each has its own triangle in a window, the second 28 pairs of the first."""
    windowed = TWO_LAYERS.changed(sliding_window=8, sliding_layers=(0, 1))
    given = {"batch": 1, "parts_of": "sequence", **TP}
    cut, whole = (segment_program(windowed, token_parts=parts, **given) for parts in (2, 1))
    assert flops(cut, "F") == pytest.approx(flops(whole, "F"), rel=1e-12)
    kernels = [each[1:] for each in attention_of(cut, "F")]
    assert kernels[2][0] == (32, 0)
    assert kernels[2][2] / kernels[0][2] == pytest.approx(28 / (36 + 24 * 8))


def test_backward_of_an_earlier_chunk_before_a_later_one_is_refused() -> None:
    """Its gradients of keys and values would lack what the later one adds."""
    program = segment_program(ONE_LAYER, batch=1, token_parts=2, parts_of="sequence", **TP)
    texts = [row.text for row in program.instructions(0)]
    first, last = texts.index("4B0.1"), texts.index("1ALL_REDUCE0")
    order = list(range(program.num_rows))
    block = order[first : last + 1]
    later = [i for i in block if texts[i].endswith(".1")]
    order[first : last + 1] = [i for i in block if i not in later] + later
    verify(program)
    with pytest.raises(ProgramError, match="adds to a block_gradient.*has read before"):
        verify(program.reordered(np.array(order), program.offsets))


def test_keys_of_its_own_chunk_alone_are_another_gradient() -> None:
    """What `verify` cannot know, the second judge sees: what a step reads is said by its effect."""
    program = segment_program(ONE_LAYER, batch=1, token_parts=2, parts_of="sequence", **TP)
    effects = tuple(
        e._replace(reads=tuple(p._replace(part="row") if p.part == "until" else p for p in e.reads))
        for e in program.tables.effects
    )
    assert effects != program.tables.effects
    assert outputs(program.with_tables(effects=effects)) != outputs(program)


def test_golden_chunks() -> None:
    program = segment_program(ONE_LAYER, batch=1, token_parts="3:1", parts_of="sequence", **TP)
    program = with_works(program.with_tables(value_bytes=()), {})
    text = to_text(program)
    check_golden("segments_tp_chunks", text)
    assert from_text(text).digest() == program.digest()


@pytest.mark.parametrize("host", ["asynchronous", "in_order"])
def test_exchanges_run_beside_computes_of_another_chunk(host: str) -> None:
    program = segment_program(TWO_LAYERS, batch=1, token_parts=2, parts_of="sequence", **TP).expand("tp")
    trace = simulate_program(program, Alike(), Alike(), host=host)
    found = [num_beside(trace, device) for device in range(program.num_lists)]
    assert min(found) >= 8, found


CUT: list[dict[str, Any]] = [
    {"batch": 4, "microbatch_size": 4, "token_parts": "3:1"},
    {"batch": 1, "token_parts": "3:1", "parts_of": "sequence"},
]


@pytest.mark.parametrize("cut", CUT, ids=str)
@pytest.mark.parametrize("fault", ["drop", "retag", "restream"])
def test_a_program_of_parts_with_a_fault_is_refused(fault: str, cut: dict[str, Any]) -> None:
    program = segment_program(TWO_LAYERS, **cut, **TP)
    check_refused(fault, program)


@pytest.mark.parametrize(
    ("choices", "what"),
    [
        ({"token_parts": 2, "microbatch_size": 1}, "microbatch_size 1"),
        ({"token_parts": "3:1", "microbatch_size": 2}, "3:1"),
        ({"token_parts": 0}, "token_parts is 0"),
        ({"token_parts": "2:0"}, "2:0"),
        ({"token_parts": 1.5}, "1.5"),
    ],
)
def test_what_has_no_whole_samples_is_refused(choices: dict[str, Any], what: str) -> None:
    with pytest.raises(PlanError, match=what):
        plan(TWO_LAYERS, batch=8, **choices)


@pytest.mark.parametrize(
    "choices",
    [
        {"recompute": "full", "recompute_blocks": (1,)},
        {"vocabulary": "one_barrier", "pp": 2},
        {"recompute": "selective_op", "recompute_blocks": (1,)},
    ],
)
def test_stages_that_are_no_chains_are_not_cut(choices: dict[str, Any]) -> None:
    chosen = plan(TWO_LAYERS, batch=8, microbatch_size=2, token_parts=2, **choices)
    with pytest.raises(PlanError, match="token_parts is 2"):
        lower(chosen, registered()[chosen.schedule])


@pytest.mark.parametrize("choices", [{"cp": 2}, {"attention": "unfused"}], ids=str)
def test_what_divides_sequences_otherwise_or_keeps_scores_has_no_chunks(choices: dict[str, Any]) -> None:
    chosen = plan(TWO_LAYERS, batch=8, token_parts=2, parts_of="sequence", **choices)
    with pytest.raises(PlanError, match="token_parts is 2 with parts_of = sequence and"):
        lower(chosen, registered()[chosen.schedule])
