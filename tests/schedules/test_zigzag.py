"""Where stages of waves stand."""

from meshwright.schedules import registered
from meshwright.schedules.zigzag import zigzag


def test_a_v_and_two_waves() -> None:
    assert zigzag(3) == [0, 1, 2, 2, 1, 0]
    assert zigzag(2, 4) == [0, 1, 1, 0, 0, 1, 1, 0]


def test_schedules_of_a_v_put_stage_s_and_its_mirror_on_device_s() -> None:
    for name in ("zbv", "v_half", "v_min", "v_1f1b", "dualpipe_v", "hanayo"):
        for device, row in enumerate(registered()[name].orders(4, 2)):
            assert {c.stage for c in row} == {device, 7 - device}, name
