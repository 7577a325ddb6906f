"""Allocated, reserved or all of a device, of which device: by words, by logs; what is expected of each, and at most."""

from __future__ import annotations

from typing import Any

import pytest
from tests.evidence.training_sample import SampleRow

from meshwright.evidence.tables.memory_column import MemoryColumn, column_of, peak_of
from meshwright.prediction.memory_buffer import most_context_bytes
from meshwright.prediction.memory_estimate import DeviceMemory, MemoryEstimate
from meshwright.specs import Cluster, ModelSpec, Plan, Workload

GIB = 1 << 30
MODEL = ModelSpec.decoder(4, 64, 4)
PLAN = Plan.of(MODEL, Cluster("2xH100"), Workload(8, 16), pp=2, dp=1)


def row(**values: str) -> Any:
    return SampleRow("a-1", values=values)


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ({"note": "memory from nvidia-smi, GB, first or last node"}, MemoryColumn("device", "ends")),
        ({"note": "device memory in use (rocm-smi style), not allocated"}, MemoryColumn("device")),
        ({"extras": "torch.cuda.max reserved"}, MemoryColumn("reserved")),
        ({"note": "peak_mem = max allocated over ranks"}, MemoryColumn("allocated")),
        ({"note": "one run"}, MemoryColumn("reserved", "fullest", is_known=False)),
    ],
)
def test_a_row_says_what_its_memory_is(values: dict[str, str], column: MemoryColumn) -> None:
    assert column_of(row(**values)) == column


def test_what_software_logs_is_taken_where_the_row_says_nothing() -> None:
    assert column_of(row(extras="nanotron")) == MemoryColumn("reserved", "first")
    assert column_of(row(extras="nanotron", note="max allocated")) == MemoryColumn("allocated", "first")
    assert column_of(row(source_repo="pytorch/torchtitan")) == MemoryColumn("reserved")
    assert column_of(row(source_repo="sail-sg/VocabularyParallelism")) == MemoryColumn("reserved")


def device(number: int, allocated: float, reserved: float, upper: float) -> DeviceMemory:
    holders = (("parameters", allocated * GIB),)
    return DeviceMemory(number, "loss", allocated * GIB, reserved * GIB, upper * GIB, GIB, holders)


MEMORY = MemoryEstimate((device(0, 10, 14, 20), device(1, 20, 24, 40), device(2, 12, 13, 22)))


def gib(column: MemoryColumn, capacity: float = 80, measured: float | None = None) -> tuple[float, float]:
    peak = peak_of(column, MEMORY, PLAN, capacity * GIB, measured)
    return round(peak.expected / GIB, 3), round(peak.upper / GIB, 3)


def test_each_quantity_is_of_the_devices_that_were_read() -> None:
    """At most 2 GiB of kernels, and communicators of an axis, of all devices and of two neighbours."""
    most = round(2 + 4 * 64 * 9633792 / GIB, 3)
    assert gib(MemoryColumn("allocated")) == (20, 40)
    assert gib(MemoryColumn("reserved")) == (24, 40)
    assert gib(MemoryColumn("reserved", "first")) == (14, 20)
    assert gib(MemoryColumn("reserved", "ends")) == (14, 22)
    assert gib(MemoryColumn("device")) == (pytest.approx(24 + (1 + most) / 2, abs=1e-3), 40 + most)
    assert gib(MemoryColumn("reserved", is_known=False)) == (24, 40 + most)


def test_a_run_that_ended_held_no_more_than_there_is() -> None:
    assert gib(MemoryColumn("reserved"), capacity=23) == (22, 40)
    assert gib(MemoryColumn("reserved"), capacity=15) == (20, 40)  # tensors it had
    assert gib(MemoryColumn("device"), capacity=26)[0] == 26


def test_a_chance_is_of_what_was_measured_and_tensors_have_none() -> None:
    def chance(column: MemoryColumn, measured: float) -> float | None:
        return peak_of(column, MEMORY, PLAN, 80 * GIB, measured * GIB).chance

    assert chance(MemoryColumn("reserved"), 24) == pytest.approx(0.5)
    outside = (GIB + most_context_bytes(PLAN)) / 2 / GIB
    assert chance(MemoryColumn("device"), 24 + outside) == pytest.approx(0.5)
    assert chance(MemoryColumn("reserved"), 41) == 1.0
    assert chance(MemoryColumn("allocated"), 24) is None
    assert peak_of(MemoryColumn("reserved"), MEMORY, PLAN, 80 * GIB, None).chance is None
