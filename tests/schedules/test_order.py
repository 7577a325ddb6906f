"""What a schedule function may return, and what is said when it returns something else."""

from __future__ import annotations

import pytest

from meshwright.schedules import Compute, Schedule, read_compute, registered, schedule
from meshwright.specs.error import CountError, ScheduleError

FIXED = (
    *("1f1b", "breadth_first", "dualpipe_v", "gpipe", "hanayo", "interleaved_1f1b"),
    *("v_1f1b", "v_half", "v_min", "zb_h1", "zb_h2", "zbv"),
)


def test_the_fixed_schedules_are_registered() -> None:
    assert set(FIXED) <= set(registered())
    assert registered()["zb_h1"].splits_backward and not registered()["1f1b"].splits_backward
    assert all(registered()[name].summary for name in FIXED)


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("p, m", [(1, 1), (2, 1), (2, 5), (5, 2), (4, 8), (3, 7)])
def test_every_compute_occurs_once(name: str, p: int, m: int) -> None:
    made = registered()[name]
    computes = [c for row in made.orders(p, m) for c in row]
    names = ("F", "I", "W") if made.splits_backward else ("F", "B")
    stages = p * made.num_chunks
    assert sorted(computes) == sorted(
        Compute(n, s, k) for n in names for s in range(stages) for k in range(m)
    )


def test_1f1b_is_the_textbook_order() -> None:
    assert [
        f"{c.name}{c.microbatch}" for c in registered()["1f1b"].orders(3, 4)[0]
    ] == "F0 F1 F2 B0 F3 B1 B2 B3".split()
    assert [
        f"{c.name}{c.microbatch}" for c in registered()["1f1b"].orders(3, 4)[2]
    ] == "F0 B0 F1 B1 F2 B2 F3 B3".split()


def test_a_users_function_may_return_texts_or_triples() -> None:
    texts = Schedule("mine", lambda p, m: [["F0", "0B0"]])
    triples = Schedule("mine", lambda p, m, v: [[("F", 0, 0), Compute("B", 0, 0)]])
    assert texts.orders(1, 1) == triples.orders(1, 1) == [[Compute("F", 0, 0), Compute("B", 0, 0)]]


@pytest.mark.parametrize(
    "item, device, expected", [("F3", 2, ("F", 2, 3)), ("5B0", 1, ("B", 5, 0)), (("W", 1, 2), 0, ("W", 1, 2))]
)
def test_read_compute(item: object, device: int, expected: tuple[str, int, int]) -> None:
    assert read_compute(item, device, "mine") == Compute(*expected)


@pytest.mark.parametrize(
    "item", ["F", "0", "F0.1", 7, ("F", 0), None, ("F", -1, 0), Compute("F", 0, -1), ("F", 0, 0.5), (1, 0, 0)]
)
def test_what_is_no_compute_is_said(item: object) -> None:
    with pytest.raises(ScheduleError, match="device 3: .* is no compute"):
        read_compute(item, 3, "mine")


@pytest.mark.parametrize(
    "counts, words",
    [
        ((0, 1, 1), "0 devices"),
        ((1, 0, 1), "0 microbatches"),
        ((1, 1, 0), "0 chunks"),
        ((2, 2, 2), "one stage a device"),
    ],
)
def test_counts_that_cannot_be(counts: tuple[int, int, int], words: str) -> None:
    with pytest.raises(CountError, match=words):
        registered()["1f1b"].orders(*counts)


def test_as_many_lists_as_devices() -> None:
    with pytest.raises(ScheduleError, match="1 lists for 3 devices"):
        Schedule("mine", lambda p, m: [["F0"]]).orders(3, 1)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ScheduleError, match="registered already"):
        schedule("1f1b")(lambda p, m: [])


@pytest.mark.parametrize(
    "returned", [None, "F0", 7, [None], ["F0 B0"], iter([["F0"]])], ids=lambda value: repr(value)[:12]
)
def test_what_is_no_order_is_said(returned: object) -> None:
    with pytest.raises(ScheduleError, match="schedule mine: .* is no order; return one list"):
        Schedule("mine", lambda p, m: returned).orders(1, 1)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("counts", [(2.5, 1), (1, "2"), (40_000, 10**9)])
def test_counts_beyond_reason_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ScheduleError, match="was asked for|stages"):
        registered()["gpipe"].orders(*counts)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("1f1b", (1,), (2,)),
        ("interleaved_1f1b", (1, 2, 3, 8), (0,)),
        ("hanayo", (2, 4, 6), (0, 1, 3)),
        ("zbv", (2,), (1, 3, 4)),
    ],
)
def test_which_numbers_of_chunks_a_schedule_takes(
    name: str, taken: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    made = registered()[name]
    assert all(made.takes_chunks(v) for v in taken) and not any(made.takes_chunks(v) for v in refused)
    assert all(len(made.orders(2, 3, v)) == 2 for v in taken)
    for v in refused:
        with pytest.raises(ScheduleError, match="chunks"):
            made.orders(2, 3, v)


def test_names_come_in_the_order_of_their_files() -> None:
    """Whatever was imported first: the planner walks through them in this order."""
    ours = [made.function.__module__ for name, made in registered().items() if name in FIXED]
    assert len(ours) == len(FIXED) and ours == sorted(ours)


@pytest.mark.parametrize(
    ("stages", "microbatches", "said"), [(40_000, 1, "32,767"), (30_000, 1_000, "2,000,000")]
)
def test_more_than_a_program_holds_is_refused_before_it_is_made(
    stages: int, microbatches: int, said: str
) -> None:
    with pytest.raises(ScheduleError, match=said):
        registered()["1f1b"].orders(stages, microbatches)
