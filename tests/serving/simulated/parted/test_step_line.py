"""A line has every kernel and message of a step once, in order: its sum is what the step takes."""

from __future__ import annotations

import pytest
from tests.serving.simulated_case import program

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.parted.step_line import COMPUTE, MEMORY, NETWORK, lines_of

BATCHES = (
    BatchShape.of([(0, 96), (64, 30)], 20, 4000),
    BatchShape.of([(0, 300)]),
    BatchShape.of((), 9, 3000),
)


@pytest.mark.parametrize(("tp", "pp", "model"), [(1, 1, "llama-3.1-8b"), (4, 2, "mixtral-8x7b")])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_the_sum_of_its_lines_is_the_program(tp: int, pp: int, model: str, batch: BatchShape) -> None:
    """Nothing of such a step runs beside anything else."""
    own = program(tp, pp, "1x8xH100", model)
    lines = lines_of(own)
    spans = [float(line.seconds(batch).sum()) for line in lines]
    step = own.step(batch)
    assert len(lines) == pp and [line.arrival_s(batch) > 0 for line in lines] == [False] + [True] * (pp - 1)
    assert sum(spans) + sum(line.arrival_s(batch) for line in lines) == pytest.approx(step.latency_s)
    assert max(spans) == pytest.approx(step.period_s, rel=0.01)  # that is from first to last compute


def test_places_say_what_they_are_bound_by() -> None:
    """One block of a dense model on two devices, behind the embedding and its sum."""
    (line,) = lines_of(program(2))
    found = [(place.name, place.resource) for place in line.places[2:14]]
    assert found == [
        ("norm", MEMORY), ("qkv", COMPUTE), ("rotary, heads", MEMORY), ("chunks", COMPUTE), ("decodes", MEMORY),
        ("output", COMPUTE), ("all_reduce", NETWORK), ("norm", MEMORY), ("gate_up", COMPUTE), ("activation", MEMORY),
        ("down", COMPUTE), ("all_reduce", NETWORK),
    ]  # fmt: skip


def test_a_batch_without_a_kind_of_request_has_no_kernel_for_it() -> None:
    (line,) = lines_of(program())
    names = [place.name for place in line.places]
    for batch, name in ((BatchShape.of((), 4, 100), "chunks"), (BatchShape.of([(0, 9)]), "decodes")):
        taken = dict(zip(names, line.seconds(batch), strict=True))
        assert taken[name] == 0.0 and taken["qkv"] > 0.0
