"""Orders of computes become programs, and an order that is not legal is refused with the grid."""

from __future__ import annotations

import pytest

from meshwright.ir.judge.verify import verify
from meshwright.ir.table import Hop, Work
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import Compute, registered
from meshwright.specs.error import ProgramError, ScheduleError


def test_a_placement_is_read_from_the_lists() -> None:
    there_and_back = [[Compute("F", 0, 0), Compute("F", 3, 0)], [Compute("F", 1, 0), Compute("F", 2, 0)]]
    assert program_of_orders(there_and_back).tables.paths == ((Hop(0, 0), Hop(1, 1), Hop(2, 1), Hop(3, 0)),)


@pytest.mark.parametrize(
    "orders, words",
    [
        (
            [[Compute("F", 0, 0)], [Compute("B", 0, 0)]],
            "device 0, position 0: 0F0, but stage 0 computes microbatch 0 on device 1, too",
        ),
        ([[Compute("F", 0, 0)], [Compute("F", 2, 0)]], r"stages \[1\] are on no device"),
    ],
)
def test_placements_that_cannot_be(orders: list[list[Compute]], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        program_of_orders(orders)


def test_a_microbatch_out_of_range_is_named() -> None:
    with pytest.raises(ScheduleError, match="device 0, position 1: 0F3, but there are 2 microbatches"):
        program_of_orders([[Compute("F", 0, 0), Compute("F", 0, 3)]], microbatches=2)


@pytest.mark.parametrize(
    "orders, counts, words",
    [
        ([[], []], {}, "no computes"),
        ([[("F", 0, 0), ("B", 0, 0)]], {"microbatches": 2}, "stage 0 never computes microbatch 1 of 2"),
        ([[("F", 0, 0), ("F", 0, 9)]], {}, "microbatch 9 is computed, but not all before it"),
        ([[("F", 0, 0), ("F", 0, 10**30)]], {}, "has more than 18 digits"),
        ([[("F", s, 0) for s in range(5)] + [("F", 0, 5)]], {}, "stage 0 never computes microbatch 1 of 6"),
        (
            [[("F", 0, 0), ("F", 1, 0), ("F", 0, 1), ("B", 0, 1)]],
            {},
            "stage 1 never computes microbatch 1 of 2",
        ),
        ([[("F", 0, 0)], []], {"num_stages": 2}, "has 1 stages, 2 were asked for"),
        ([[("F", 0, 0), ("SEND_F", 0, 0), ("STEP", 0, 0)]], {}, "the order has SEND_F, STEP"),
        ([[("F", 0, 0), ("Q", 0, 0)]], {}, "the order has Q; it holds computes of stages"),
    ],
)
def test_an_order_that_is_not_what_was_asked_for(
    orders: list[list[tuple[str, int, int]]], counts: dict[str, int], words: str
) -> None:
    with pytest.raises(ScheduleError, match=words):
        program_of_orders([[Compute(*each) for each in row] for row in orders], **counts)  # type: ignore[arg-type]


def test_stages_beyond_the_column_are_refused() -> None:
    with pytest.raises(ProgramError, match="the column stage has 32999"):
        program_of_orders([[Compute("F", stage, 0)] for stage in range(33_000)])


def test_a_backward_before_its_forward_is_shown_in_the_grid() -> None:
    orders = registered()["1f1b"].orders(4, 8)
    place = orders[2].index(Compute("F", 2, 1))
    other = orders[2].index(Compute("B", 2, 1))
    orders[2][place], orders[2][other] = orders[2][other], orders[2][place]
    with pytest.raises(ScheduleError) as refused:
        verify(Transfers()(program_of_orders(orders)))
    message = str(refused.value).splitlines()
    assert message[0] == "device 2, position 5: 2B1 runs before 2F1."
    assert message[2].split() == "pos dev0 dev1 dev2 dev3".split()
    assert [line.split() for line in message if "<-- here" in line] == [
        "5 0SEND_F2 1F1 2B1 3SEND_B0 <-- here".split()
    ]


def test_a_forward_that_is_missing_is_shown() -> None:
    orders = registered()["gpipe"].orders(1, 2)
    orders[0].remove(Compute("F", 0, 1))
    with pytest.raises(ScheduleError, match="position 1: 0B1") as refused:
        verify(program_of_orders(orders, microbatches=2))
    assert "nothing in its list writes it" in str(refused.value)


def test_of_pieces_forward_rises_and_everything_else_falls() -> None:
    orders = [
        [Compute("F", 0, 0), Compute("B", 0, 0)],
        [Compute("F", 1, 0), Compute("I", 1, 0), Compute("W", 1, 0)],
    ]
    program = program_of_orders(orders, pieces=(2, 3))
    first, second = ([row.text for row in program.instructions(device)] for device in (0, 1))
    assert first == ["0F0", "1F0", "1B0", "0B0"]
    assert second == ["2F0", "3F0", "4F0", "4I0", "3I0", "2I0", "4W0", "3W0", "2W0"]
    assert program.tables.paths == ((Hop(0, 0), Hop(1, 0), Hop(2, 1), Hop(3, 1), Hop(4, 1)),)


def test_pieces_are_of_the_stages_of_the_lists() -> None:
    orders = registered()["1f1b"].orders(3, 4)
    with pytest.raises(ScheduleError, match="the order has 3 stages, 2 were asked for"):
        program_of_orders(orders, pieces=(2, 2))


def test_works_by_name_and_stage() -> None:
    program = Transfers()(program_of_orders(registered()["1f1b"].orders(2, 1)))
    full = with_works(program, {("F", 0): Work("F", flops=1.0), ("F", 1): Work("F", flops=2.0)})
    flops = {view.text: view.work.flops for d in (0, 1) for view in full.instructions(d) if view.work}
    assert flops == {"0F0": 1.0, "1F0": 2.0}
