"""The cluster as a profile found it: processes that were measured to be slower than others are devices of lower rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.cluster.profile import Profile, kept
from meshwright.specs.cluster.source import ASSUMED_RATES


def profile_of(cluster: ClusterSpec, profile: Profile | None) -> Profile | None:
    """The profile given, or else this user's own; none of clusters that are no processes of this machine."""
    return (profile or kept()) if cluster.devices[0].name == "cpu" else None


def measured_basis(profile: Profile) -> str:
    """What measured times rest on, for people."""
    return f"times rest on the profile of {profile.device} measured {profile.measured or 'earlier'}"


def calibrated_cluster(cluster: ClusterSpec, profile: Profile | None = None) -> ClusterSpec:
    """The cluster as this machine was measured: processes that are slower than others are slower devices, and what was
    assumed of their rates is not any more.

    Args:
        profile: None: the one in the user's cache.
    """
    found = profile_of(cluster, profile)
    if found is None:
        return cluster
    told = tuple(measured_basis(found) if line == ASSUMED_RATES else line for line in cluster.assumptions)
    return calibrated(cluster if told == cluster.assumptions else replace(cluster, assumptions=told), found)


def calibrated(cluster: ClusterSpec, profile: Profile) -> ClusterSpec:
    """`cluster` with the rates of every device divided by what its process took over the mean of all.

    As it is where the profile found all processes alike or was of another number of processes, and where the cluster
    says itself that its devices differ.
    """
    factors = profile.process_factors
    if len(factors) != cluster.num_devices or not cluster.is_homogeneous:
        return cluster
    devices = tuple(_slower(device, factor) for device, factor in zip(cluster.devices, factors, strict=True))
    told = ", ".join(f"{factor:.2f}" for factor in factors)
    sentence = f"processes were measured to differ: a compute takes {told} times the mean of all"
    return replace(cluster, devices=devices).with_assumption(sentence)


def device_factors(cluster: ClusterSpec, profile: Profile) -> Mapping[DeviceSpec, float]:
    """What a compute takes on each device of a calibrated cluster over what the profile's tables say."""
    factors = profile.process_factors
    if len(factors) != cluster.num_devices or cluster.is_homogeneous:
        return {}
    return dict(zip(cluster.devices, factors, strict=True))


def _slower(device: DeviceSpec, factor: float) -> DeviceSpec:
    return replace(
        device,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s / factor,
        flops_per_s={dtype: rate / factor for dtype, rate in device.flops_per_s.items()},
    )
