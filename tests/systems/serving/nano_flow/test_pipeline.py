"""Kernels beside each other take what their shares say: by hand, by bounds, and as long laid out as whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.simulated_case import program

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.parted.step_line import MEMORY, NETWORK, lines_of
from meshwright.systems.serving.nano_flow.nano_batch import Cut, LinePeriod
from meshwright.systems.serving.nano_flow.pipeline import CURVES, NanoGraph, NanoOperation, NanoPipeline

BATCH = BatchShape.of([(0, 700)], 324, 324 * 900)
TWO, FOUR = Cut((0.5, 0.5), (1, 1)), Cut((0.25, 0.25, 0.25, 0.25), (2, 2), is_even=False)


def span(operations: Sequence[tuple[int, float, float, tuple[int, ...]]]) -> float:
    """Of (resource, seconds, share, waits for)."""
    graph = NanoGraph.of(NanoOperation(of, seconds, None, waits) for of, seconds, _, waits in operations)
    return graph.span(graph.alone_s, [share for _, _, share, _ in operations])


def test_what_is_computed_has_what_others_leave() -> None:
    """4 s of computing beside 3 s at a share of 0.4: 1.8 s are computed by then, and 2.2 s are left. At a share of 1 one runs
    behind the other, and two shares of 0.6 do not fit beside each other."""
    assert span([(0, 4.0, 0.0, ()), (1, 3.0, 0.4, ())]) == pytest.approx(3.0 + 2.2)
    assert span([(0, 4.0, 0.0, ()), (1, 3.0, 1.0, ())]) == pytest.approx(7.0)
    assert span([(1, 2.0, 0.6, ()), (2, 3.0, 0.6, ())]) == pytest.approx(5.0)
    assert span([(1, 2.0, 0.4, ()), (2, 3.0, 0.6, ())]) == pytest.approx(3.0)


def test_one_kernel_of_a_resource_runs_at_a_time_and_waits_for_those_before_it() -> None:
    """Two products; a message of the first beside the second; a product behind the message."""
    assert span([(0, 2.0, 0.0, ()), (0, 2.0, 0.0, ()), (2, 3.0, 0.0, (0,)), (0, 1.0, 0.0, (2,))]) == 6.0


def test_curves_are_those_of_the_paper() -> None:
    assert CURVES[MEMORY].speed(0.4) == 0.8 and CURVES[NETWORK].speed(0.2) == 0.5


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0.01, 5), st.floats(0, 1)), min_size=1, max_size=12),
    st.randoms(),
)
def test_a_span_is_between_its_bounds(drawn: list[tuple[int, float, float]], draw: object) -> None:
    """No less than each resource is busy, nor than the device can give; no more than all one behind the other."""
    operations = [
        (of, seconds, share if of else 0.0, tuple({draw.randrange(i)} if i and draw.random() < 0.5 else ()))  # type: ignore[attr-defined]
        for i, (of, seconds, share) in enumerate(drawn)
    ]
    found = span(operations)
    busy = [sum(seconds for of, seconds, _, _ in operations if of == resource) for resource in range(3)]
    taken = sum(seconds * share for of, seconds, share, _ in operations if of)
    assert max(*busy, busy[0] + taken) <= found * (1 + 1e-9)
    assert found <= sum(busy) * (1 + 1e-9)


@pytest.mark.parametrize("cut", [TWO, FOUR], ids=["two", "four"])
def test_a_few_periods_tell_of_all(cut: Cut) -> None:
    """32 blocks laid out are as long as six and what each further one adds."""
    (line,) = lines_of(program(4, 1, "1x8xH100", "llama-3.1-8b"))
    pipeline = NanoPipeline(LinePeriod.of(line), cut, BATCH)
    shares = {slot: 0.4 if line.places[slot[0]].resource == MEMORY else 0.2 for slot in pipeline.slots}
    whole_s = pipeline._laid_s(pipeline.period.number, shares)
    assert pipeline.seconds(shares) == pytest.approx(whole_s, rel=0.005)
    assert pipeline.seconds(None) < pipeline.seconds(shares) < 1.6 * pipeline.one_by_one_s


def test_nano_batches_one_by_one_are_slower_than_the_batch() -> None:
    """Weights are read once more by each."""
    (line,) = lines_of(program(4))
    period, whole_s = LinePeriod.of(line), line.seconds(BATCH).sum()
    two, four = (NanoPipeline(period, cut, BATCH).one_by_one_s for cut in (TWO, FOUR))
    assert whole_s < two < four


def test_copies_take_a_share() -> None:
    (line,) = lines_of(program(4))
    period = LinePeriod.of(line)
    plain, copying = (NanoPipeline(period, TWO, BATCH, num_bytes) for num_bytes in (0.0, 4096.0))
    shares = dict.fromkeys(plain.slots, 0.4)
    assert plain.seconds(shares) < copying.seconds(shares) < 1.2 * plain.seconds(shares)
