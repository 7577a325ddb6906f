"""Fetched weights on paper: their bytes are counted, a slow source is all that a step takes, and a quick one nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.serving.simulated_case import of_8b as program

from meshwright.serving.policy.limits import Limits
from meshwright.serving.simulated import forward_program
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.replica_memory import check_neighbours, replica_memory
from meshwright.serving.weight.weight_place import WeightPlace, WeightSource
from meshwright.specs.error import OutOfMemoryError

DECODE, PREFILL = BatchShape.of((), 1, 100), BatchShape.of([(0, 512)])
NUMBERS, TABLE = 8_030_261_248, 128_256 * 4096  # of Llama-3.1-8B, untied


@dataclass(frozen=True)
class Fetched:
    """Blocks whose names end so come at a rate."""

    bytes_per_s: float = 1e9
    window: int = 2
    ending: str = ""
    name: str = "disk"

    @property
    def source(self) -> WeightSource:
        return WeightSource(self.name, self.bytes_per_s)

    def fetched(self, blocks: Any) -> list[str]:
        return [block for block in blocks if block.endswith(self.ending)]


@pytest.fixture
def fetching(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A replica of so many devices whose weights come as a place says."""

    def of(place: WeightPlace, tp: int = 1, pp: int = 1) -> ForwardProgram:
        monkeypatch.setattr(forward_program, "weight_place", lambda _: place)
        return replace(program(tp, pp), weights="fetched")

    return of


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_blocks_are_all_of_the_model(fetching: Any, tp: int, pp: int) -> None:
    """Norms are on both of two devices: 65 of 4,096 numbers."""
    found = fetching(Fetched(), tp, pp).fetches
    assert len(found) == pp
    total = sum(sum(each.sizes.values()) for each in found) / 2
    assert total == (NUMBERS + (tp - 1) * 65 * 4096) / tp


def test_from_a_slow_source_a_step_takes_what_its_bytes_do(fetching: Any) -> None:
    """Nothing else of it is seen; a window of any size, one device or two; of two stages both, one behind the other."""
    for window in (2, 3):
        found = fetching(Fetched(1e8, window)).step(DECODE)
        assert found.latency_s == found.period_s == pytest.approx(2 * NUMBERS / 1e8)
    assert fetching(Fetched(1e8), 2).step(DECODE).latency_s == pytest.approx(NUMBERS / 1e8, rel=1e-4)
    apart = fetching(Fetched(1e8), 1, 2).step(DECODE)
    assert apart.latency_s == pytest.approx(2 * NUMBERS / 1e8, rel=1e-3)
    assert apart.period_s < 0.6 * apart.latency_s


def test_from_a_quick_source_nothing_is_waited_for(fetching: Any) -> None:
    stays = program().step(DECODE).latency_s
    assert fetching(Fetched(1e15)).step(DECODE).latency_s == pytest.approx(stays, rel=1e-6)
    assert fetching(Fetched(1e9, ending="of none")).step(DECODE).latency_s == stays


def test_what_a_step_waits_is_what_loads_take_beyond_computes(fetching: Any) -> None:
    """Feed-forward parts alone, 352 MB each, from 200 GB/s: they come while a layer is computed with 512 tokens, and not
    while one is with one token."""
    place = Fetched(200e9, ending="feed_forward")
    decode, prefill = fetching(place).step(DECODE).latency_s, fetching(place).step(PREFILL).latency_s
    load_s = 32 * 2 * (3 * 4096 * 14336 + 4096) / 200e9
    stays = [program().step(batch).latency_s for batch in (DECODE, PREFILL)]
    assert decode == pytest.approx(load_s, rel=1e-6) and decode > 2 * stays[0]
    assert prefill < max(load_s, stays[1]) * 1.01


def test_a_window_is_all_that_memory_has_of_fetched_blocks(fetching: Any) -> None:
    """Head and embedding stand beside each other where one step ends and the next one begins."""
    limits = Limits(2048, 256, 8192)
    found = replica_memory(fetching(Fetched()), limits, 16)
    assert found.weight_bytes == 2 * (2 * TABLE + 4096)
    stays = replica_memory(fetching(Fetched(ending="feed_forward")), limits, 16).weight_bytes
    layer = 2 * (3 * 4096 * 14336 + 4096)
    assert stays == 2 * NUMBERS - (32 - 2) * layer
    assert found.num_blocks > replica_memory(program(), limits, 16).num_blocks


def test_neighbours_have_to_have_room(fetching: Any) -> None:
    """16 GB of a model lie on devices that no replica has: of eight devices seven, of eight replicas of one none."""
    pooled = fetching(Fetched(name="peer"), 2)
    check_neighbours(pooled, 3)
    with pytest.raises(
        OutOfMemoryError, match="64.2 GB of weights are to lie with neighbours, and 0 devices"
    ):
        check_neighbours(pooled, 4)
    with pytest.raises(OutOfMemoryError, match="112 GB.* 1 devices"):
        check_neighbours(fetching(Fetched(name="peer")), 7)
    check_neighbours(fetching(Fetched()), 8)
