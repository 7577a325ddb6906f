"""Loads of experts and devices: copies count together, layers are told apart, nobody is no load."""

from __future__ import annotations

from meshwright.serving.weight.expert_loads import ExpertLoads, SlotRows

ROWS = (
    SlotRows(3, 1, (2, 0), (1, 3)),
    SlotRows(3, 0, (0, 1), (4, 0)),
    SlotRows(1, 0, (1, 0), (6, 2)),
    SlotRows(1, 1, (2, 3), (0, 0)),
)


def test_rows_by_expert_and_by_device() -> None:
    found = ExpertLoads.of(ROWS)
    assert found is not None
    assert found.layers == (1, 3)
    assert found.by_expert == ((2, 6, 0, 0), (7, 0, 1))
    assert found.by_device == ((8, 0), (4, 4))
    assert found.num_rows == 16
    assert found.busiest_expert == (6 / 2 + 7 / (8 / 3)) / 2
    assert found.busiest_device == (2 + 1) / 2
    assert "16 rows in 2 layers; busiest expert 2.81 x the mean, busiest of 2 devices 1.50 x" in str(found)
    assert found.to_dict()["rows_by_device"] == [[8, 0], [4, 4]]


def test_without_experts_or_rows_nobody_is_busy() -> None:
    assert ExpertLoads.of(()) is None
    found = ExpertLoads.of([SlotRows(0, 0, (0, 1), (0, 0))])
    assert found is not None and (found.busiest_expert, found.busiest_device) == (1.0, 1.0)
    assert "devices" not in str(found), "one device has no others to wait for"
