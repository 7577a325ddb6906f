"""Nothing of a batch is lost where it is cut, and a line of kernels is its period again and again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.simulated_case import program

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.parted.step_line import lines_of
from meshwright.systems.serving.nano_flow.nano_batch import TILE, Cut, LinePeriod, near_attention, total

SHARES = st.sampled_from([(0.5, 0.5), (0.1, 0.9), (0.25, 0.25, 0.2, 0.3), (0.7, 0.1, 0.1, 0.1)])


@given(SHARES, st.booleans(), st.integers(0, 3000), st.integers(0, 2000), st.integers(1, 4000))
def test_the_parts_of_a_cut_are_the_batch(
    shares: tuple[float, ...], is_even: bool, chunk: int, decodes: int, seen: int
) -> None:
    batch = BatchShape(chunk, chunk * seen, min(chunk, 3), decodes, decodes * seen)
    if not batch.num_tokens:
        return
    parts = Cut(shares, (1,) * len(shares), is_even).batches(batch)
    assert total(parts) == batch and min(min(part) for part in parts) >= 0
    assert all(part.num_tokens % TILE == 0 for part in parts[:-1]) or batch.num_tokens < TILE * len(shares)
    if not is_even:
        assert all(
            not after.num_decodes
            for before, after in zip(parts, parts[1:], strict=False)
            if before.chunk_tokens
        )


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"])
def test_a_line_is_its_period_as_often_as_the_model_has_blocks(model: str) -> None:
    """A model whose first blocks are dense repeats those behind them."""
    own = program(8, 1, "8x8xH100", model)
    (line,) = lines_of(own)
    period = LinePeriod.of(line)
    num_dense = 3 if model == "deepseek-v3" else 0
    assert own.model.num_layers - num_dense - 1 <= period.number <= own.model.num_layers
    assert [line.places[each] for each in period.laid(period.number)] == list(line.places)


def test_near_attention_is_from_the_message_to_the_decodes() -> None:
    (line,) = lines_of(program(2))
    near = [
        place.name for place, is_near in zip(line.places, near_attention(line.places), strict=True) if is_near
    ]
    assert near[:5] == ["norm", "qkv", "rotary, heads", "chunks", "decodes"]
    assert len(near) == 5 * 4
