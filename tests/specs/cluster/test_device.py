"""Devices: presets with sources, checks, directed links."""

from importlib import resources

import pytest

from meshwright.costs.kernel.packaged import load_kernel_profile
from meshwright.specs import (
    DeviceSpec,
    Link,
    SpecError,
    UnknownNameError,
    device_presets,
    load_device,
    usual_node,
)
from meshwright.specs.cluster import device as device_room


def test_presets_are_there_with_their_source():
    assert {"A100-80", "H100", "MI250X", "cpu"} <= set(device_presets())
    for name in device_presets():
        assert load_device(name).source and usual_node(name).source


@pytest.mark.parametrize(
    ("name", "memory_gb", "bandwidth", "bfloat16", "per_node"),
    [
        ("A100-40", 40, 1.555e12, 312e12, 8),
        ("H200", 150.75482, 4.8e12, 989.4e12, 8),
        ("H100-96GB-HBM2e", 96, 2.4e12, 989.4e12, 8),
        ("B200", 191.501854, 8e12, 2.25e15, 8),
        ("B300", 270, 7.75e12, 2.25e15, 8),
        ("GB200", 186, 8e12, 2.5e15, 72),
        ("GB300", 279, 8e12, 2.5e15, 72),
        ("MI300X", 192, 5.3e12, 1307.4e12, 8),
        ("MI325X", 274.877907, 6e12, 1307.4e12, 8),
        ("MI350X", 309.237645, 8e12, 2306.9e12, 8),
        ("MI355X", 309.237645, 8e12, 2516.6e12, 8),
        ("H800", 85.520809984, 3.35e12, 989.4e12, 8),
        ("L20", 48, 864e9, 119.5e12, 8),
        ("L40S", 48, 864e9, 362.05e12, 8),
        ("RTX-4090", 24, 1.008e12, 165.2e12, 8),
        ("RTX-PRO-6000", 96, 1.792e12, 503.8e12, 8),
    ],
)
def test_devices_by_their_data_sheets(name, memory_gb, bandwidth, bfloat16, per_node):
    device = load_device(name)
    assert device.memory_bytes == pytest.approx(memory_gb * 1e9, rel=1e-6)
    assert device.memory_bandwidth_bytes_per_s == bandwidth
    assert device.peak_flops_per_s("bfloat16") == bfloat16 and usual_node(name).num_devices == per_node


@pytest.mark.parametrize("name", device_presets())
def test_float8_is_twice_the_dense_16_bit_rate(name):
    rates = load_device(name).flops_per_s
    if "float8" not in rates:
        assert name in {"A100-40", "A100-80", "MI250X", "V100", "cpu"}  # no float8 units at all
        return
    assert rates["bfloat16"] == rates["float16"]
    assert rates["float8"] / rates["bfloat16"] == pytest.approx(2, rel=0.02)  # L40S: 733 against 362.05


@pytest.mark.parametrize(
    ("names", "bandwidth", "nic"),  # one direction of one device: GB/s inside the node, Gb/s to the network
    [
        (("A100-40", "A100-80"), 300, 200),  # NVLink 3
        (("H100", "H200", "H100-96GB-HBM2e"), 450, 400),  # NVLink 4
        (("B200", "GB200"), 900, 400),  # NVLink 5, ConnectX-7
        (("B300", "GB300"), 900, 800),  # NVLink 5, ConnectX-8
        (("V100",), 150, 50),
        (("MI300X", "MI325X"), 64, 400),  # of one of seven links
        (("MI350X", "MI355X"), 76.8, 400),
    ],
)
def test_usual_nodes_by_the_generation_of_their_links(names, bandwidth, nic):
    for name in names:
        node = usual_node(name)
        assert node.bandwidth_bytes_per_s == bandwidth * 1e9 and node.nic_bytes_per_s == nic * 1e9 / 8


def test_the_power_limited_h100_says_so():
    device = load_device("H100-96GB-HBM2e")
    assert device.power_w == 500 and "835 TFLOP/s" in device.note
    assert load_device("H100").power_w == 700 and not load_device("H100").note


@pytest.mark.parametrize(("name", "family"), [
    ("A100-80", "a100"), ("H100", "h100"), ("B200", "b200"), ("MI300X", "mi300x"), ("MI355X", "mi355x"),
])  # fmt: skip
def test_presets_agree_with_the_chips_of_the_fitted_profiles(name, family):
    device, chip = load_device(name), load_kernel_profile(family).chip
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(chip.memory_bytes_per_s, rel=0.02)
    for dtype, rate in chip.flops_per_s.items():
        assert device.peak_flops_per_s(dtype) == pytest.approx(rate, rel=0.02)
    assert device.num_units == chip.num_sms


def test_what_advice_needs_to_know_of_a_device():
    assert usual_node("MI300X").wiring == "pairs" and usual_node("MI300X").least_message_bytes == 32e6
    assert usual_node("H100").wiring == "switch" and usual_node("H100").least_message_bytes is None
    assert usual_node("L40S").wiring == "other" and load_device("L40S").num_units is None


def test_wiring_that_is_none_is_refused(tmp_path, monkeypatch):
    text = (resources.files("meshwright.specs") / "presets" / "devices" / "h100.toml").read_text()
    folder = tmp_path / "presets" / "devices"
    folder.mkdir(parents=True)
    (folder / "h100.toml").write_text(text.replace('wiring = "switch"', 'wiring = "string"'))
    monkeypatch.setattr(device_room.resources, "files", lambda package: tmp_path)
    device_room._presets.cache_clear()
    try:
        with pytest.raises(SpecError, match="'wiring' is 'string'"):
            device_presets()
    finally:
        device_room._presets.cache_clear()


def test_v100_has_no_bfloat16():
    assert load_device("V100").peak_flops_per_s("float16") == 125e12
    with pytest.raises(SpecError, match="no peak rate for bfloat16"):
        load_device("V100").peak_flops_per_s("bfloat16")


def test_h100_by_its_data_sheet():
    device = load_device("h100")
    assert device.memory_bytes == 81_559 * 2**20  # what its driver reports
    assert device.memory_bandwidth_bytes_per_s == 3.35e12
    assert device.peak_flops_per_s("bfloat16") == 989.4e12 and device.host == "asynchronous"
    assert usual_node("H100").nic_bytes_per_s == 50e9 and load_device("cpu").host == "in_order"


def test_unknown_device_and_number_format():
    with pytest.raises(UnknownNameError, match="did you mean H100"):
        load_device("H10")
    with pytest.raises(SpecError, match="no peak rate for float8"):
        load_device("A100-80").peak_flops_per_s("float8")


@pytest.mark.parametrize(
    "change",
    [
        {"memory_bytes": 0},
        {"memory_bandwidth_bytes_per_s": -1.0},
        {"flops_per_s": {}},
        {"flops_per_s": {"float99": 1.0}},
        {"flops_per_s": {"float32": 0.0}},
        {"host": "sometimes"},
        {"num_units": 0},
        {"multiple": -64},
    ],
)
def test_numbers_that_cannot_be_are_refused(change):
    good = {
        "name": "x",
        "memory_bytes": 1,
        "memory_bandwidth_bytes_per_s": 1.0,
        "flops_per_s": {"float32": 1.0},
    }
    assert hash(DeviceSpec(**good)) == hash(DeviceSpec(**good))
    with pytest.raises(SpecError) as caught:
        DeviceSpec(**{**good, **change})
    assert caught.value.allowed


def test_a_link_is_alone_in_its_group_unless_said_otherwise():
    assert Link("device 0", "device 1", 1.0, 0.0).group != Link("device 1", "device 0", 1.0, 0.0).group
    assert Link("device 0", "device 1", 1.0, 0.0, "cable").group == "cable"
    with pytest.raises(SpecError):
        Link("device 0", "device 1", 0.0, 0.0)
