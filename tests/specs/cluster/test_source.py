"""Clusters by short name, from TOML, from this computer."""

import re

import pytest

from meshwright.specs import Cluster, SpecError, UnknownNameError
from meshwright.specs.cluster import source as cluster_source
from meshwright.specs.cluster.computer import memory_available_bytes, num_cores
from meshwright.specs.cluster.text import cluster_text


def test_nodes_times_devices():
    cluster = Cluster("32x8xH100", nic="400Gb/s")
    assert cluster.num_devices == 256 and cluster.assumptions == ()
    assert cluster.bandwidth_bytes_per_s(0, 7) == 450e9 and cluster.bandwidth_bytes_per_s(0, 8) == 50e9


def test_a_device_count_means_usual_nodes_and_says_so():
    cluster = Cluster("16384xH100")
    assert cluster.num_devices == 16384 and cluster.level_between(0, 7).name == "node"
    assert "2048 nodes of 8" in cluster.assumptions[0] and "NIC" in cluster.assumptions[1]


@pytest.mark.parametrize(
    ("text", "count"), [("H100", 1), ("4xcpu", 4), ("2 x 4 x A100-80", 8), ("8*mi250x", 8)]
)
def test_other_short_names(text, count):
    assert Cluster(text).num_devices == count


def test_an_nvlink_domain_of_72_is_a_node():
    cluster = Cluster("144xGB200")
    assert cluster.bandwidth_bytes_per_s(0, 71) == 900e9 and cluster.bandwidth_bytes_per_s(71, 72) == 50e9
    assert "72 GPUs" in cluster.assumptions[0] and "2 nodes of 72" in cluster.assumptions[1]
    part = Cluster("2x64xGB300")
    assert part.level_between(0, 63).name == "node" and part.level_between(63, 64).name == "network"


def test_a_gcd_is_said_to_be_one():
    assert "GCD" in Cluster("8xMI250X").assumptions[0]


@pytest.mark.parametrize("text", ["12xH100", "0xH100", "", "8x", "9999999xH100"])
def test_short_names_that_cannot_be(text):
    with pytest.raises(SpecError) as caught:
        Cluster(text)
    assert caught.value.allowed


@pytest.mark.parametrize("nic", ["100Gb/s", "12.5GB/s", 12.5e9, 1 / 3 * 1e10])
def test_a_nic_that_was_given_is_part_of_the_name(nic):
    """A plan keeps the name of its cluster, and must not run on the usual network instead."""
    own = Cluster("4x8xH100", nic=nic)
    assert Cluster(own.name) == own
    assert own.levels[1].bandwidth_bytes_per_s == (nic if isinstance(nic, float) else 12.5e9)
    assert Cluster("4x8xH100").name == "4x8xH100"


@pytest.mark.parametrize("name", ["4x8xH100 nic=", "4x8xH100 nic=fast", "4x8xH100 nic=-1GB/s"])
def test_a_nic_that_cannot_be(name):
    with pytest.raises(SpecError):
        Cluster(name)


def test_unknown_device_lists_near_matches():
    with pytest.raises(UnknownNameError, match="H100"):
        Cluster("8xH10")


def documented(tmp_path):
    """The file of the module's own documentation."""
    lines = re.findall(r"^    (.*)$|^$", cluster_source.__doc__.split("from that:")[1], re.MULTILINE)
    path = tmp_path / "ours.toml"
    path.write_text("\n".join(lines))
    return path


def test_the_documented_file_loads(tmp_path):
    cluster = Cluster.load(documented(tmp_path))
    assert cluster.num_devices == 64 and cluster.name == "ours"
    assert cluster.path(0, 1)[0].group == "cable 0" and cluster.bandwidth_bytes_per_s(1, 0) == 450e9
    assert cluster.latency_s(0, 63) == 5e-6
    assert Cluster(str(documented(tmp_path))) == cluster


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 1", "schema = 9", "schema 9"),
        ("schema = 1", "", "'schema' is missing"),
        ('bandwidth = "450GB/s"', 'bandwidht = "450GB/s"', "did you mean bandwidth"),
        ('"450GB/s"', '"450GB"', "a bandwidth such as"),
        ("count = 64", 'count = "64"', "a whole number"),
        ("count = 64", "count = 65", "joins all devices"),
        ('"device"', '"nowhere"', "device or group"),
        ('wiring = "switch"', 'wiring = "ring"', "'wiring' is 'ring'"),
        ('wiring = "switch"', 'fabric = "yarn"', "'fabric' is 'yarn'"),
        ('name = "ours"', "name = ", "not a TOML file"),
    ],
)
def test_a_broken_file_gives_one_clear_message(tmp_path, old, new, said):
    path = documented(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(SpecError, match=re.escape(said)) as caught:
        Cluster.load(path)
    assert str(path) in str(caught.value) or "cluster ours" in str(caught.value)


def test_a_fabric_stands_behind_the_nic_and_comes_back_from_the_name_and_from_a_file(tmp_path):
    cluster = Cluster("4x8xH100 nic=50GB/s efa")
    assert [level.fabric for level in cluster.levels] == ["infiniband", "efa"]
    assert cluster.levels[1].bandwidth_bytes_per_s == 50e9
    assert Cluster(cluster.name) == cluster
    path = tmp_path / "efa.toml"
    path.write_text(cluster_text(cluster))
    assert Cluster.load(path).levels == cluster.levels


def test_a_device_in_full(tmp_path):
    path = documented(tmp_path)
    device = 'name = "own"\nmemory = "10GB"\nmemory_bandwidth = "1TB/s"\nflops_per_s.float32 = "1TFLOP/s"'
    path.write_text(path.read_text().replace('preset = "H100"', device))
    assert Cluster.load(path).device(0).peak_flops_per_s("float32") == 1e12


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"there is no file .*nowhere\.toml"):
        Cluster.load(tmp_path / "nowhere.toml")


def test_this_computer():
    cluster = Cluster.detect(2)
    assert cluster.num_devices == 2 and cluster.device(0).host == "in_order"
    assert 2 * cluster.device(0).memory_bytes <= memory_available_bytes()
    assert Cluster.detect().num_devices == num_cores() >= 1
    assert "calibrate" in cluster.assumptions[0]
    with pytest.raises(SpecError):
        Cluster.detect(0)
