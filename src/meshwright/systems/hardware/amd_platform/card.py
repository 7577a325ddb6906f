"""Sizing a model and its plan for nodes of eight MI300X: waves of tiles, multiples, messages, links in use.

Paper:      Training Foundation Models on a Full-Stack AMD Platform: Compute, Networking, and System Design,
            Quentin Anthony, Yury Tokpanov, Skyler Szot, Srivatsan Rajagopal, Praneeth Medepalli, Anna Golubeva,
            Vasu Shyam, Robert Washbourne, Rishi Iyer, Ansh Chaurasia, Tomas Figliolia, Xiao Yang, Abhinav Sarje,
            Drew Thorstensen, Amartey Pearson, Zack Grossbart, Jason van Patten, Emad Barsoum, Zhenyu Gu, Yao Fu,
            Beren Millidge, 2025, arXiv 2511.17127
Problem:    Dimensions and degrees that suit other GPUs leave compute units and links of this platform idle.
Idea:       A product [m, k] @ [k, n] in tiles of tm x tn runs in waves over C compute units: with T = ceil(m/tm) ceil(n/tn)
            tiles a share T / (C ceil(T/C)) of them works. Dimensions are multiples of what a tile is made of. Every
            pair of GPUs has an xGMI link of its own, so a group of n GPUs uses n - 1 of the seven links of each: an
            all-reduce of S bytes takes 2 (a + S / (n b)) with latency a and b bytes/s of a link, and its bus bandwidth
            is at most (n - 1) b. A message reaches a share x of that from a n b x / (1 - x) bytes on.
Kind:       survey
Use:        meshwright check PLAN, of a plan for MI300X: what of it does not suit the device stands under its advice
Simulated:  all-reduces by the links of a cluster; no step
Executed:   no, because the rules need no execution; they are arithmetic on a plan
Differs:    1. The paper's measured curves (products, collectives over Pollara NICs) are figures that we do not have: rules
            are its, every number to compare with is from elsewhere and says from where.
            2. A line through all-reduce times is tested on a sweep of Galvatron's, whose GPUs are not these. It is too fast
            where small messages go over to large ones: of fifteen sizes, three of 8 and 32 MB miss by 12 to 17 %.
            3. The package's preset of a node is a switch with seven links' rate for each GPU; in groups of two and four it
            would be 7 and 7/3 times too fast. `platform` has one link for each pair, as the paper says.
            4. Tiles are the larger sizes with which the package prices matrix products; a library has more.
            5. The rules are the planner's for every device (`planner.device_advice`); the paper's multiple of 64 and its
            messages of tens of megabytes stand in the preset of the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import numpy as np

from meshwright.costs.roofline import LINK_EFFICIENCY
from meshwright.planner.advice import device_advice
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import Link
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import SpecError
from meshwright.specs.plan.plan import Plan

CLAIMS = (
    {
        "claim": "usable GB/s of an xGMI link of 64 GB/s",
        "kind": "predicted",
        "unit": "GB/s",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a prediction",
        "how": "the share of a link that the package's roofline assumes of all links; paper_value from AMD (ROCm blog on "
        "RCCL and xGMI, March 2025; ROCm/rccl issue 1210)",
        "by": "usable_link",
        "cases": (({}, 48),),
    },
    {
        "claim": "bus bandwidth of an all-reduce of 1 GB on {num_gpus} MI300X",
        "kind": "predicted",
        "unit": "GB/s",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a prediction",
        "how": "all shares at once over the links of the node, 48 GB/s each; paper_value is what Oracle's health check of "
        "BM.GPU.MI300X.8 demands of all_reduce_perf from 1 GB on, after AMD's blog",
        "by": "all_reduce_bandwidth",
        "cases": (({"num_gpus": 8}, 310),),
    },
    {
        "claim": "links of a GPU, in GB/s, that a group of {num_gpus} MI300X uses",
        "kind": "identity",
        "unit": "GB/s",
        "tolerance": 0.01,
        "reason": "(n - 1) links of 48 GB/s, less latency",
        "how": "as above; paper_value is totalBw in RCCL's own topology of four GPUs (ROCm/rccl issue 1210)",
        "by": "all_reduce_bandwidth",
        "cases": (({"num_gpus": 4}, 144),),
    },
    {
        "claim": "share of 304 compute units that work on {num_tiles} tiles",
        "kind": "identity",
        "unit": "share",
        "tolerance": 1e-9,
        "reason": "arithmetic",
        "how": "tiles / (ceil(tiles / 304) 304)",
        "by": "wave_efficiency",
        "cases": (({"num_tiles": 304}, 1.0), ({"num_tiles": 305}, 0.5016447368421053)),
    },
    {
        "claim": "milliseconds of an all-reduce of {megabytes} MB on {num_gpus} GPUs, by a line through other sizes",
        "kind": "fitted on 1, 4, 16, 64, 256 and 1024 MB",
        "unit": "ms",
        "tolerance": 0.10,
        "reason": "ten percent: a model of messages that is worse does not help to choose a bucket",
        "how": "latency and bandwidth by least squares of relative errors; paper_value measured by Galvatron "
        "(PKU-DAIR/Hetu-Galvatron, tests/utils/search_configs.py)",
        "by": "line_ms",
        "cases": (
            ({"num_gpus": 8, "megabytes": 2}, 0.1094),
            ({"num_gpus": 8, "megabytes": 8}, 0.1827),
            ({"num_gpus": 8, "megabytes": 32}, 0.4157),
            ({"num_gpus": 8, "megabytes": 128}, 1.2826),
            ({"num_gpus": 8, "megabytes": 512}, 4.6768),
            ({"num_gpus": 4, "megabytes": 2}, 0.09109),
            ({"num_gpus": 4, "megabytes": 8}, 0.1581),
            ({"num_gpus": 4, "megabytes": 32}, 0.3205),
            ({"num_gpus": 4, "megabytes": 128}, 1.0725),
            ({"num_gpus": 4, "megabytes": 512}, 3.7352),
            ({"num_gpus": 2, "megabytes": 2}, 0.07932),
            ({"num_gpus": 2, "megabytes": 8}, 0.1084),
            ({"num_gpus": 2, "megabytes": 32}, 0.2281),
            ({"num_gpus": 2, "megabytes": 128}, 0.7417),
            ({"num_gpus": 2, "megabytes": 512}, 2.6886),
        ),
    },
)
# The platform (AMD Instinct MI300X data sheet and CDNA 3 white paper).
DEVICE, GPUS_PER_NODE, NUM_COMPUTE_UNITS = "MI300X", 8, 304
LINK_BYTES_PER_S = 64e9  # of the one xGMI link between two GPUs, in each direction
USABLE_SHARE = 48 / 64  # of a link, after checksums and protocol (AMD, as in the claims)
LARGE_MESSAGE_BYTES = 1e9  # in which latency is lost
# Milliseconds by megabytes (of 2^20 bytes) on 8, 4 and 2 GPUs on which the line is fitted (source as in the claims).
SWEEP_MS: Mapping[int, Mapping[int, float]] = {
    8: {1: 0.07895, 4: 0.1333, 16: 0.2941, 64: 0.6519, 256: 2.3584, 1024: 8.1409},
    4: {1: 0.07981, 4: 0.1091, 16: 0.2183, 64: 0.5848, 256: 2.0709, 1024: 7.1874},
    2: {1: 0.0703, 4: 0.09008, 16: 0.1434, 64: 0.3924, 256: 1.3887, 1024: 5.1594},
}
GIGA, MEBI = 1e9, 2**20


def platform(num_nodes: int = 1) -> ClusterSpec:
    """Nodes of eight MI300X with one link for each pair of a node. Raises SpecError."""
    cluster = Cluster(f"{num_nodes}x{GPUS_PER_NODE}x{DEVICE}")
    latency_s = cluster.levels[0].latency_s
    links = tuple(
        Link(f"device {first + a}", f"device {first + b}", LINK_BYTES_PER_S, latency_s)
        for first in range(0, cluster.num_devices, GPUS_PER_NODE)
        for a, b in permutations(range(GPUS_PER_NODE), 2)
    )
    return replace(cluster, links=links)


def all_reduce_s(cluster: ClusterSpec, num_gpus: int, num_bytes: float) -> float:
    """Seconds in which the first GPUs of a cluster sum a tensor: each sends every other its share, twice.

    All messages travel at once; what shares a link waits for it, at the usable share of its rate. Raises SpecError.
    """
    if not 2 <= num_gpus <= cluster.num_devices:
        raise SpecError(f"an all-reduce on {num_gpus} GPUs", allowed=f"2 to {cluster.num_devices}")
    load_s: defaultdict[str, float] = defaultdict(float)
    latency_s = 0.0
    for source, target in permutations(range(num_gpus), 2):
        for link in cluster.path(source, target):
            load_s[link.group] += num_bytes / num_gpus / (link.bandwidth_bytes_per_s * USABLE_SHARE)
        latency_s = max(latency_s, cluster.latency_s(source, target))
    return 2 * (latency_s + max(load_s.values()))


def bus_bandwidth(cluster: ClusterSpec, num_gpus: int, num_bytes: float) -> float:
    """2 (n-1)/n S / t in bytes/s, as nccl-tests counts. Raises SpecError."""
    return 2 * (num_gpus - 1) / num_gpus * num_bytes / all_reduce_s(cluster, num_gpus, num_bytes)


def all_reduce_bandwidth(num_gpus: int) -> float:
    """GB/s of a large all-reduce on GPUs of one node."""
    return bus_bandwidth(platform(), num_gpus, LARGE_MESSAGE_BYTES) / GIGA


def usable_link() -> float:
    """GB/s that the roofline would give a link of this platform."""
    return LINK_BYTES_PER_S * LINK_EFFICIENCY / GIGA


def fit_line(times: Mapping[int, float]) -> tuple[float, float]:
    """Latency in seconds and bytes/s of a sweep {megabytes: milliseconds}, by least squares of relative errors."""
    sizes = np.array([size * MEBI for size in times])
    seconds = np.array([each / 1e3 for each in times.values()])
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    (latency_s, slope), *_ = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)
    return float(latency_s), 1 / float(slope)


def line_ms(num_gpus: int, megabytes: int) -> float:
    """Milliseconds of an all-reduce by the line through the fitted half of the sweep."""
    latency_s, bytes_per_s = fit_line(SWEEP_MS[num_gpus])
    return 1e3 * (latency_s + megabytes * MEBI / bytes_per_s)


def wave_efficiency(num_tiles: int, num_units: int = NUM_COMPUTE_UNITS) -> float:
    """Share of compute units that work while tiles run in whole waves. Raises SpecError."""
    return device_advice.wave_efficiency(num_tiles, num_units)


def advice(plan: Plan, cluster: ClusterSpec) -> tuple[str, ...]:
    """What of a plan does not suit the platform, one sentence each; none where everything does: the planner's rules, with
    the paper's numbers as the device's preset has them.

    Raises SpecError where the cluster is not made of these GPUs.
    """
    device = cluster.devices[0]
    if not device.name.startswith(DEVICE) or not cluster.is_homogeneous:
        raise SpecError(
            f"the cluster {cluster.name} has {device.name}",
            allowed=DEVICE,
            next="these rules are about one platform; `meshwright check` has those of others",
        )
    return tuple(found.sentence for found in device_advice.device_advice(plan, cluster))
