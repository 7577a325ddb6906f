"""A cluster written as a file is the same cluster when it is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.specs.cluster.test_source import documented

from meshwright.specs import Cluster, SpecError, UnknownNameError
from meshwright.specs.cluster.text import cluster_text


@pytest.mark.parametrize(
    "name", ["H100", "2x4xA100", "16xGB200", "8xMI300X", "8xH100+8xA100", "3xcpu", "file"]
)
def test_a_written_cluster_is_read_as_itself(name: str, tmp_path: Path) -> None:
    cluster = Cluster.load(documented(tmp_path)) if name == "file" else Cluster(name)
    path = tmp_path / "written.toml"
    path.write_text(cluster_text(cluster), encoding="utf-8")
    assert Cluster.load(path) == replace(cluster, assumptions=())


def test_a_device_that_is_no_preset_is_written_out(tmp_path: Path) -> None:
    cluster = Cluster("2x8xH100")
    faster = replace(cluster.devices[0], name="ours", note="a prototype", memory_bytes=10**11)
    cluster = replace(cluster, devices=(faster,) * 16, name="ours", assumptions=())
    path = tmp_path / "written.toml"
    path.write_text(cluster_text(cluster), encoding="utf-8")
    assert Cluster.load(path) == cluster


def test_nodes_of_several_kinds_have_the_links_of_the_slowest() -> None:
    mixed, slow = Cluster("8xH100+8xA100"), Cluster("2x8xA100-80")
    assert [device.name for device in mixed.devices] == ["H100"] * 8 + ["A100-80"] * 8
    assert mixed.bandwidth_bytes_per_s(0, 1) == slow.bandwidth_bytes_per_s(0, 1)
    assert mixed.bandwidth_bytes_per_s(0, 8) == min(
        slow.bandwidth_bytes_per_s(0, 8), Cluster("2x8xH100").bandwidth_bytes_per_s(0, 8)
    )
    assert any("A100 is taken as A100-80" in line for line in mixed.assumptions)
    slow_nic = Cluster("8xH100+8xA100 nic=100Gb/s")
    assert slow_nic.bandwidth_bytes_per_s(0, 8) == 12.5e9 and Cluster(slow_nic.name) == slow_nic
    with pytest.raises(SpecError, match="devices a node"):
        Cluster("8xH100+4xA100")


def test_a_file_under_a_short_name_keeps_it_only_where_it_means_that(tmp_path: Path) -> None:
    """A plan keeps its cluster's name alone: under the short name it would run on the usual network again."""
    usual, path = Cluster("2x8xH100"), tmp_path / "ours.toml"
    node, network = usual.levels
    slower = replace(usual, levels=(node, replace(network, bandwidth_bytes_per_s=12.5e9)))
    path.write_text(cluster_text(slower), encoding="utf-8")
    slow = Cluster.load(path)
    assert slow.bandwidth_bytes_per_s(0, 8) == 12.5e9 and slow.name == "2x8xH100 (ours.toml)"
    with pytest.raises(UnknownNameError):
        Cluster(slow.name)
