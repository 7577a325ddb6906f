"""Programs as text: golden files, round trips, torch's CSV in both directions, and what is said about a wrong line."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir import text as program_text
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Exchange, Inner, ParameterGroup, Work
from meshwright.ir.text import canonical, from_text, from_torch_csv, to_text, to_torch_csv
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import Compute, Schedule, registered
from meshwright.specs.error import ProgramError
from meshwright.specs.operator import Operator
from tests.covering import examples
from tests.golden.text import check_golden
from tests.ir.random_program import random_costs, random_program

torch = pytest.importorskip("torch")
torch_pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")

FIXED = ("1f1b", "gpipe", "interleaved_1f1b", "zb_h1")


def lowered(
    name: str, p: int, m: int, *passes: object, groups: object = (), collapsed: object = ()
) -> Program:
    program = program_of_orders(registered()[name].orders(p, m), groups=groups, collapsed=collapsed)  # type: ignore[arg-type]
    for one in passes:
        program = one(program)  # type: ignore[operator]
    return Transfers()(program)


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("p, m", [(2, 2), (4, 8)])
def test_golden_schedules(name: str, p: int, m: int) -> None:
    check_golden(f"{name}_p{p}_m{m}", to_text(lowered(name, p, m)))


def test_golden_paths() -> None:
    """Two ways through the same stages: a line for each path, and every microbatch with its own."""
    groups = [ParameterGroup(f"stage{s}", (s,), 400) for s in range(2)]
    program = lowered("dualpipe", 2, 4, ReduceGradients(), OptimizerStep(), groups=groups)
    check_golden("dualpipe_p2_m4", to_text(program))
    assert from_text(to_text(program)).digest() == program.digest()


@pytest.mark.parametrize("word", ["recompute", "recompute_stage_1", "split", "data_parallel", "tied"])
def test_golden_passes(word: str) -> None:
    passes = {
        "recompute": (Recompute(),),
        "recompute_stage_1": (Recompute(stages=(1,)),),
        "split": (SplitBackward(), Recompute()),
    }.get(word, (ReduceGradients(), OptimizerStep()))
    groups = [ParameterGroup(f"stage{s}", (s,), 400, ("dp",)) for s in range(2)]
    groups += [ParameterGroup("tied", (0, 1), 80, ("dp",))] if word == "tied" else []
    trained = word in ("data_parallel", "tied")
    collapsed = [Axis("dp", 2, False)] if trained else []
    check_golden(
        f"1f1b_{word}_p2_m2",
        to_text(lowered("1f1b", 2, 2, *passes, groups=groups if trained else (), collapsed=collapsed)),
    )


def test_the_example_of_the_design() -> None:
    """A header and one line a list is a whole program; what a name implies need not be written."""
    text = """
    meshwright-program 1   axes pp=2   microbatches 2
    0: 0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0B0 0B1
    1: 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1
    """
    program = from_text(text)
    verify(program)
    assert to_text(program).splitlines()[1:] == [line.strip() for line in text.splitlines()[2:4]]
    assert program.tables.streams[program.columns.stream[1]] == "send/pp1"
    assert program.tables.duties and program.tables.paths[0][1].device == 1


@settings(max_examples=examples(200))
@given(st.integers(0, 10**9))
def test_random_programs_round_trip(seed: int) -> None:
    """Text gives back the same rows, the same text, the same digest, and the same times."""
    program = random_program(Random(seed))
    text = to_text(program)
    back = from_text(text)
    assert to_text(back) == text
    assert canonical(back).digest() == back.digest() == canonical(program).digest()
    assert [back.row(i) for i in range(back.num_rows)] == [program.row(i) for i in range(program.num_rows)]
    seconds, latency_s = random_costs(Random(seed), program)
    try:
        expected = replay(wire(program), seconds, latency_s, iterations=2)
    except ProgramError as error:
        with pytest.raises(type(error)):
            replay(wire(back), seconds, latency_s, iterations=2)
        return
    for one, other in zip(expected, replay(wire(back), seconds, latency_s, iterations=2), strict=True):
        np.testing.assert_array_equal(one, other)


def test_works_round_trip() -> None:
    works = {
        ("F", 0): Work("F", 7, (1, 2), "bfloat16", 1.5, 2.5, 0.5),
        ("F", 1): Work("F", 7, flops=2.0),
        ("B", 0): Work("B"),
    }
    program = with_works(lowered("1f1b", 2, 2), works)
    back = from_text(to_text(program))
    assert [view.work for view in back.instructions(0)] == [view.work for view in program.instructions(0)]
    assert [view.work for view in back.instructions(1)] == [view.work for view in program.instructions(1)]


def test_works_with_operators_and_exchanges_inside_round_trip() -> None:
    operators = (
        Operator("matmul", 2.0, 3.0, (4, 5, 6), 7, "forward", "qkv"),
        Operator("norm", 1.0, 2.0, (4, 5)),
    )
    inner = (
        Inner(Exchange(("pp",), algorithm="all_gather"), 1024.0, 3, "matmul", "tensor parallel"),
        Inner(Exchange(("pp",), (0, 1), algorithm="all_to_all.top2"), 0.5),
    )
    works = {
        ("F", 0): Work("F", 7, operators=operators, inner=inner),
        ("F", 1): Work("F", 7, inner=inner[:1]),
    }
    program = with_works(lowered("1f1b", 2, 2), works)
    text = to_text(program)
    back = from_text(text)
    assert [view.work for view in back.instructions(0)] == [view.work for view in program.instructions(0)]
    assert [view.work for view in back.instructions(1)] == [view.work for view in program.instructions(1)]
    assert back.digest() == program.digest()
    plain = to_text(with_works(lowered("1f1b", 2, 2), {("F", 0): Work("F", 7, operators=operators)}))
    assert "],[]]" not in plain, (
        "what is not there is not written: texts from before such exchanges stay as they were"
    )
    without = from_text(plain)
    assert without.tables.works[0].operators == operators and not without.tables.works[0].inner


@pytest.mark.parametrize(
    "change, words",
    [
        (("meshwright-program 1", "meshwright-program 2"), "has version 2, this meshwright reads 1"),
        (("meshwright-program 1", "a program"), "first line must begin with"),
        (("axes pp=2", "axis pp=2"), "line 1"),
        (("0: ", "0: 0Q0 "), "'Q' is none of the core's"),
        (("0: ", "0: F0 "), "'F0' is no instruction"),
        (("0: ", "0: 0F7 "), "0F7: the program has 2 microbatches"),
        (("0: ", "7: "), r"lists \[1, 7\]"),
        (("0: ", "wrok []\n0: "), "line 2: 'wrok \\[\\]' is no line"),
        (("0: ", "work [1\n0: "), "line 2"),
        (("0: ", "0: 0F0{effect=9} "), "effect=9"),
        (("0: ", "0: 0F0{effect=x} "), "says effect='x'"),
        (("0: ", "0: 0F0{colour=1} "), "says colour='1'"),
        (("0: ", "0: 0F0{exchange=4} "), "exchange=4, but there are 0 exchange lines"),
        (("0: ", "0: 0F0{after=3} "), "only rows before it can be waited for"),
        (("0: ", "0: 40000F0 "), "the column stage has 40000"),
        (("0: ", "0: 0F0\n0: "), "0 is there already"),
        (("axes pp=2", "axes pp=2 pp=2"), "each once"),
        (("axes pp=2", "axes pp=0"), "of size 1 or more"),
        (("axes pp=2", "axes pp=99999999999"), r"axes ask for 0 to 99999999998"),
        (("microbatches 2", "microbatches 99999999999"), "up to 1,000,000"),
        (("0: ", "stages -1\n0: "), "line 2"),
        (("0: ", "path 0@0 1@7\n0: "), r"a path goes to 1@7"),
        (("0: ", "microbatch [1,0.5,3]\nmicrobatch [1,0.5]\n0: "), "a microbatch takes path 3"),
        (("0: ", "microbatch [1.5,0.5]\n0: "), "its tokens is 1.5"),
        (("0: ", "microbatch [1,NaN]\n0: "), "its weight is nan"),
        (("0: ", 'group ["g",3]\n0: '), "its stages is 3"),
        (("0: ", 'group ["g",[0],4,["tp"]]\n0: '), "no axis 'tp'"),
        (("0: ", "work []\n0: "), "line 2"),
        (("0: ", 'work ["F",0,[],"float32",0.0,0.0,1.0,["x"]]\n0: '), "line 2"),
        (("0: ", 'value ["saved","moon"]\n0: '), "the index 'moon'"),
        (("0: ", 'duty ["F","moon"]\n0: '), "due per 'moon'"),
        (("0: ", "exchange [[],null,1]\n0: "), "names no axis"),
        (("0: ", 'exchange [["pp"],null,1,"s"]\n0: '), "run-time size 's'"),
        (("0: ", 'default-effect 0 ["SEND","X",[],[],null]\n0: 0X0 '), "X is a SEND that moves nothing"),
        (
            ("0: ", 'default-effect 0 ["COMPUTE","X",[["saved","hop",0,"zero",0,-1]],[],null]\n0: 0X0 '),
            "of age -1",
        ),
    ],
)
def test_a_wrong_line_is_named(change: tuple[str, str], words: str) -> None:
    text = to_text(lowered("1f1b", 2, 2)).replace(*change, 1)
    with pytest.raises(ProgramError, match=words):
        from_text(text)


def test_an_effect_is_found_by_the_number_of_its_line() -> None:
    """Numbers in the text are names: any will do, whatever stands before or between them."""
    text = to_text(lowered("1f1b", 2, 2, Recompute(stages=(1,))))
    assert "effect 7" not in text and "{effect=" in text, "the example must name an effect by its line"
    number = text.partition("{effect=")[2].partition("}")[0]
    other = text.replace(f"effect {number} ", "effect 77 ").replace(f"effect={number}", "effect=77")
    assert to_text(from_text(other)) == text


# ------------------------------------------------------------------------------------------------ torch


class StageOfTorch:
    """What torch's schedule constructors ask a stage for; nothing is computed."""

    def __init__(self, index: int, num_stages: int, rank: int, size: int) -> None:
        self.stage_index, self.num_stages, self.group_rank, self.group_size = index, num_stages, rank, size
        self.is_first, self.is_last, self.has_backward = index == 0, index == num_stages - 1, True
        self.group, self.device, self.submod = None, "cpu", torch.nn.Identity()


def torch_orders(name: str, p: int, m: int, v: int) -> list[list[str]]:
    """torch's own actions of a schedule, as texts, by rank."""
    made = getattr(torch_pipelining, name)(
        [StageOfTorch(k * p, p * v, 0, p) for k in range(v)], m, loss_fn=lambda *_: None
    )
    return [
        ["" if action is None else str(action) for action in made.pipeline_order[rank]] for rank in range(p)
    ]


@pytest.mark.parametrize(
    "name, names",
    [
        ("ScheduleInterleaved1F1B", "FB"),
        ("ScheduleInterleavedZeroBubble", "FIW"),
        ("ScheduleZBVZeroBubble", "FIW"),
        ("ScheduleLoopedBFS", "FB"),
    ],
)
def test_torchs_schedules_run_here(name: str, names: str) -> None:
    """torch's CSV becomes a schedule of ours that verifies, every compute where torch has it."""
    p, m, v = 4, 8, 2
    theirs = torch_orders(name, p, m, v)
    lists = from_torch_csv("".join(",".join(row) + "\n" for row in theirs))
    assert lists == [[text for text in row if text] for row in theirs]
    orders = Schedule(name, lambda p, m: lists).orders(p, m)
    program = program_of_orders(orders)
    assert {c.name for row in orders for c in row} >= set(names)
    if {c.name for row in orders for c in row} == set(names):
        assert sum(map(len, orders)) == p * v * m * len(names)
        verify(Transfers()(program))
    else:  # full and split backwards in one list: each microbatch has one or the other
        assert sum(len(c.name) + (c.name == "B") for row in orders for c in row) == p * v * m * len(names)


def test_torchs_interleaved_is_ours() -> None:
    """The same warm-up and the same order on every rank."""
    p, m, v = 4, 8, 2
    theirs = [[text for text in row if text] for row in torch_orders("ScheduleInterleaved1F1B", p, m, v)]
    ours = [
        [f"{c.stage}{c.name}{c.microbatch}" for c in row]
        for row in registered()["interleaved_1f1b"].orders(p, m, v)
    ]
    assert theirs == ours


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("p, m", [(2, 4), (4, 8)])
def test_torch_loads_our_csv(name: str, p: int, m: int, tmp_path: object) -> None:
    """`_PipelineScheduleRuntime._load_csv` of torch reads the lists with sends and receives, action by action."""
    program = lowered(name, p, m)
    path = tmp_path / "ours.csv"  # type: ignore[operator]
    path.write_text(to_torch_csv(program))
    v = registered()[name].num_chunks
    runtime = torch_pipelining._PipelineScheduleRuntime(
        [StageOfTorch(k * p, p * v, 0, p) for k in range(v)],
        m,
        loss_fn=lambda *_: None,  # type: ignore[list-item]
    )
    runtime._load_csv(str(path), format="compute_comms")
    for rank in range(p):
        loaded = [str(action) for action in runtime.pipeline_order_with_comms[rank]]
        assert loaded == [view.text for view in program.instructions(rank)]
    computes = [[f"{c.stage}{c.name}{c.microbatch}" for c in row] for row in registered()[name].orders(p, m)]
    assert from_torch_csv(path.read_text()) == computes


def test_an_action_that_is_none_of_ours_is_named() -> None:
    with pytest.raises(ProgramError, match="rank 1: action 'OVERLAP_F_B'"):
        from_torch_csv("0F0,0B0\n1F0,OVERLAP_F_B\n")
    with pytest.raises(ProgramError, match="rank 0: action .* allowed: F, B, I, W"):
        from_torch_csv("0F0,(0F1;0B0)OVERLAP_F_B\n")
    assert from_torch_csv("0F0,,0SEND_F0\n1RECV_F0,1F0\n") == [["0F0"], ["1F0"]]
    assert Compute("F", 0, 0) == Schedule("x", lambda p, m: from_torch_csv("0F0\n")).orders(1, 1)[0][0]


def test_lines_left_empty_at_the_end_are_no_ranks() -> None:
    assert from_torch_csv("0F0,0B0\n\n\n") == [["0F0", "0B0"]]


def test_what_torch_has_no_action_for_is_refused() -> None:
    with pytest.raises(ProgramError, match="torch's CSV has no action R"):
        to_torch_csv(lowered("1f1b", 2, 2, Recompute()))


def test_a_size_with_the_empty_counts_of_before_is_read() -> None:
    text = (Path(__file__).parents[1] / "golden" / "segments_tp_sequence_parallel.txt").read_text()
    before = text.replace("768.0,768.0]", "768.0,768.0,[]]")
    assert before != text and to_text(from_text(before)) == text
    with pytest.raises(ProgramError, match="size"):
        from_text(text.replace("768.0,768.0]", "768.0,768.0,[1]]"))


@pytest.mark.parametrize("name", sorted(registered()))
def test_no_cell_of_a_csv_is_a_formula(name: str) -> None:
    """What is written there is numbers and names of a closed list, never a text that somebody chose."""
    found = program_of_orders(registered()[name].orders(4, 8))
    cells = [cell for line in to_torch_csv(found).splitlines() for cell in line.split(",")]
    assert cells and all(re.fullmatch(r"\d+[A-Z]\d+", cell) for cell in cells)


def test_exchanges_are_looked_through_once_and_not_for_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of rows with exchanges of their own took time by the square of their length."""
    program = from_text(
        (Path(__file__).parents[1] / "golden" / "segments_tp_sequence_parallel.txt").read_text()
    )
    asked, real = [], program_text._implied_exchange
    monkeypatch.setattr(program_text, "_implied_exchange", lambda *given: asked.append(1) or real(*given))
    to_text(program)
    assert program.num_rows <= len(asked) <= 4 * program.num_rows
