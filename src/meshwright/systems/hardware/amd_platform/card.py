"""Sizing a model and its plan for nodes of eight MI300X: waves of tiles, multiples, messages, links in use.

Paper:      Training Foundation Models on a Full-Stack AMD Platform: Compute, Networking, and System Design,
            Quentin Anthony, Yury Tokpanov, Skyler Szot, Srivatsan Rajagopal, Praneeth Medepalli, Anna Golubeva,
            Vasu Shyam, Robert Washbourne, Rishi Iyer, Ansh Chaurasia, Tomas Figliolia, Xiao Yang, Abhinav Sarje,
            Drew Thorstensen, Amartey Pearson, Zack Grossbart, Jason van Patten, Emad Barsoum, Zhenyu Gu, Yao Fu,
            Beren Millidge, 2025, arXiv 2511.17127
Problem:    Dimensions and degrees that suit other GPUs leave compute units and links of this platform idle.
Idea:       A product [m, k] @ [k, n] in tiles of tm x tn runs in waves over C compute units: with T = ceil(m/tm) ceil(n/tn)
            tiles a share T / (C ceil(T/C)) of them works. Dimensions are multiples of what a tile is made of. Every
            pair of GPUs has an xGMI link of its own, so a group of n GPUs uses n - 1 of the seven links of each: with b
            bytes/s of a link an all-reduce of S bytes takes 2 S / (n b) and what it starts with, and its bus bandwidth
            is at most (n - 1) b.
Kind:       survey
Use:        meshwright check PLAN, of a plan for MI300X: what of it does not suit the device stands under its advice
Simulated:  all-reduces and plans on the package's own MI300X nodes, whose GPUs are joined in pairs
Executed:   no, because the rules need no execution; they are arithmetic on a plan
Differs:    1. The abstract has no number of the system but the model's size: 8.3 billion parameters, 760 million active. The
            paper's measured curves (products, collectives over Pollara NICs) are figures that we do not have: the rules are
            its, every other number to compare with is from elsewhere and says from where.
            2. Four constants of the collectives (start, hop, two rates) are fitted on eight GPUs of one machine. That a
            group of n has n - 1 links is not fitted: groups of two and four are predicted by it, and so are another
            machine and two nodes. The network is the one fitted on NCCL tables of other GPUs.
            3. The second machine's rows below 32 KiB are not claimed: 13.5 to 23.4 us on one node, 219 to 257 us on two,
            whatever their size. They tell the start again, which 32 KiB does, too.
            4. ZAYA1 is taken without its convolutions over keys, its router's inner layers and its scales of the residual.
            5. Tiles are the larger sizes with which the package prices matrix products; a library has more.
            6. The rules are the planner's for every device (`planner.device_advice`); the paper's multiple of 64 and its
            messages of tens of megabytes stand in the preset of the device.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.roofline import Roofline
from meshwright.ir.table import Exchange
from meshwright.planner.advice import device_advice
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator
from meshwright.specs.plan.plan import Plan

CLAIMS = (
    {
        "claim": "microseconds of an all-reduce of {mebibytes} MiB on {num_gpus} MI300X of a node",
        "kind": "predicted",
        "unit": "us",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off; constants are from groups of eight only",
        "how": "as `plan` prices it: n - 1 links of each GPU, the rates of a link as eight GPUs reach them",
        "by": "all_reduce_us",
        "source": "RCCL 2.20.5, 8 x MI300X at TensorWave: github.com/mk1-project/quickreduce, README, commit 910e892250b6",
        "null": {"bytes over bandwidth": "by_bytes_us", "nearest published row": "whole_node_us"},
        "cases": (
            ({"num_gpus": 2, "mebibytes": 0.03125}, 17.15),
            ({"num_gpus": 2, "mebibytes": 0.0625}, 17.52),
            ({"num_gpus": 2, "mebibytes": 0.125}, 18.31),
            ({"num_gpus": 2, "mebibytes": 0.25}, 20.73),
            ({"num_gpus": 2, "mebibytes": 0.5}, 25.97),
            ({"num_gpus": 2, "mebibytes": 1}, 37.22),
            ({"num_gpus": 2, "mebibytes": 2}, 59.14),
            ({"num_gpus": 2, "mebibytes": 4}, 105.1),
            ({"num_gpus": 2, "mebibytes": 8}, 195.2),
            ({"num_gpus": 2, "mebibytes": 16}, 376.3),
            ({"num_gpus": 2, "mebibytes": 32}, 739),
            ({"num_gpus": 2, "mebibytes": 64}, 1464.3),
            ({"num_gpus": 4, "mebibytes": 0.03125}, 18.17),
            ({"num_gpus": 4, "mebibytes": 0.0625}, 18.23),
            ({"num_gpus": 4, "mebibytes": 0.125}, 29.42),
            ({"num_gpus": 4, "mebibytes": 0.25}, 29.98),
            ({"num_gpus": 4, "mebibytes": 0.5}, 32.27),
            ({"num_gpus": 4, "mebibytes": 1}, 39.4),
            ({"num_gpus": 4, "mebibytes": 2}, 48.87),
            ({"num_gpus": 4, "mebibytes": 4}, 70.61),
            ({"num_gpus": 4, "mebibytes": 8}, 115.7),
            ({"num_gpus": 4, "mebibytes": 16}, 205.4),
            ({"num_gpus": 4, "mebibytes": 32}, 388.6),
            ({"num_gpus": 4, "mebibytes": 64}, 761.2),
        ),
    },
    {
        "claim": "microseconds of an all-reduce of {mebibytes} MiB on {num_gpus} MI300X, the rows that were fitted",
        "kind": "fitted on these 12 rows, four constants",
        "unit": "us",
        "tolerance": 0.20,
        "reason": "small messages of the table itself are uneven: 256 KiB takes less than 64",
        "how": "least squares of logarithms (benchmarks/fit/fit_rccl.py)",
        "by": "fitted_us",
        "source": "as above",
        "cases": (
            ({"num_gpus": 8, "mebibytes": 0.03125}, 16.22),
            ({"num_gpus": 8, "mebibytes": 0.0625}, 20),
            ({"num_gpus": 8, "mebibytes": 0.125}, 22.56),
            ({"num_gpus": 8, "mebibytes": 0.25}, 18.01),
            ({"num_gpus": 8, "mebibytes": 0.5}, 24.19),
            ({"num_gpus": 8, "mebibytes": 1}, 26.39),
            ({"num_gpus": 8, "mebibytes": 2}, 34.05),
            ({"num_gpus": 8, "mebibytes": 4}, 52.13),
            ({"num_gpus": 8, "mebibytes": 8}, 83.12),
            ({"num_gpus": 8, "mebibytes": 16}, 148.4),
            ({"num_gpus": 8, "mebibytes": 32}, 240.4),
            ({"num_gpus": 8, "mebibytes": 64}, 426),
        ),
    },
    {
        "claim": "microseconds of an all-reduce of {mebibytes} MiB on {num_gpus} MI300X of another machine",
        "kind": "predicted",
        "unit": "us",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off",
        "how": "as `plan` prices it",
        "by": "all_reduce_us",
        "source": "rccl-tests in AMD's cloud (AAC8): github.com/hisohara/ai-scripts, training/01_rccl-smoketest/README.md",
        "null": {"bytes over bandwidth": "by_bytes_us", "nearest published row": "nearest_row_us"},
        "cases": (
            ({"num_gpus": 8, "mebibytes": 128}, 800.3),
            ({"num_gpus": 8, "mebibytes": 256}, 1540.4),
            ({"num_gpus": 8, "mebibytes": 512}, 3027.1),
            ({"num_gpus": 8, "mebibytes": 1024}, 5990.7),
            ({"num_gpus": 8, "mebibytes": 2048}, 11940),
            ({"num_gpus": 8, "mebibytes": 4096}, 23841),
            ({"num_gpus": 8, "mebibytes": 8192}, 47617),
        ),
    },
    {
        "claim": "microseconds of an all-reduce of {mebibytes} MiB on {num_gpus} MI300X of {num_nodes} nodes",
        "kind": "predicted",
        "unit": "us",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off",
        "how": "as `plan` prices it; eight NICs of 400 Gb/s a node, the network's constants from other GPUs",
        "by": "all_reduce_us",
        "source": "rccl-tests in AMD's cloud (AAC10): github.com/hisohara/ai-scripts, training/01_rccl-smoketest/README.md",
        "null": {"bytes over bandwidth": "by_bytes_us", "nearest published row": "one_node_us"},
        "cases": (
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 0.03125}, 239.9),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 0.0625}, 241.1),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 0.125}, 242.9),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 0.25}, 248.8),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 0.5}, 305.6),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 1}, 414.8),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 2}, 318.6),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 4}, 337.9),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 8}, 402.2),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 16}, 497.3),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 32}, 590.3),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 64}, 821.9),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 128}, 1448.8),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 256}, 1713.4),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 512}, 3096.3),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 1024}, 5908.3),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 2048}, 11574),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 4096}, 22788),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 8192}, 45224),
            ({"num_gpus": 16, "num_nodes": 2, "mebibytes": 16384}, 90115),
        ),
    },
    {
        "claim": "usable GB/s of an xGMI link of 64 GB/s",
        "kind": "predicted",
        "unit": "GB/s",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a prediction",
        "how": "the rate that the fitted constants give one link",
        "by": "usable_link",
        "source": "AMD: ROCm blog on RCCL and xGMI, March 2025; ROCm/rccl issue 1210",
        "null": {"bytes over bandwidth": 64.0},
        "cases": (({}, 48),),
    },
    {
        "claim": "bus bandwidth of an all-reduce of 1 GB on {num_gpus} MI300X",
        "kind": "predicted",
        "unit": "GB/s",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a prediction",
        "how": "2 (n - 1) / n bytes over the seconds of `plan`",
        "by": "bus_bandwidth",
        "source": "what Oracle's health check of BM.GPU.MI300X.8 demands of all_reduce_perf from 1 GB on, after AMD's blog",
        "null": {"bytes over bandwidth": 448.0},
        "cases": (({"num_gpus": 8}, 310),),
    },
    {
        "claim": "links of a GPU, in GB/s, that a group of {num_gpus} MI300X uses",
        "kind": "identity",
        "unit": "GB/s",
        "tolerance": 0.01,
        "reason": "(n - 1) links of 48 GB/s",
        "how": "(n - 1) b of the preset's node, of which AMD calls 48 of 64 usable",
        "by": "links_in_use",
        "source": "totalBw in RCCL's own topology of four GPUs (ROCm/rccl issue 1210)",
        "cases": (({"num_gpus": 4}, 144),),
    },
    {
        "claim": "PFLOP/s that matrix products reach on {num_nodes} nodes of eight",
        "kind": "predicted",
        "unit": "PFLOP/s",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off",
        "how": "a product of 8192 x 8192 x 8192 by the roofline of the data sheet, which knows no AMD GPU",
        "by": "product_pflops",
        "source": "'over 750 PFLOPs of max achievable FLOPS' of the paper's cluster: AMD, blog on ZAYA1, November 2025",
        "null": {"bytes over bandwidth": 1338.8},
        "cases": (({"num_nodes": 128}, 750),),
    },
    {
        "claim": "billions of parameters of ZAYA1 outside of its embedding, {which}",
        "kind": "identity",
        "unit": "billion",
        "tolerance": 0.10,
        "reason": "router, convolutions and scales are not counted: a few percent of what is active",
        "how": "40 blocks of (16 or 1 experts x 3 x 2048^2 + attention of 8 heads of 128, 2 of keys); dimensions: "
        "huggingface/transformers, models/zaya/configuration_zaya.py",
        "by": "zaya1_parameters",
        "source": "abstract",
        "cases": (({"which": "all"}, 8.3), ({"which": "active"}, 0.76)),
    },
    {
        "claim": "share of 304 compute units that work on {num_tiles} tiles",
        "kind": "identity",
        "unit": "share",
        "tolerance": 1e-9,
        "reason": "arithmetic",
        "how": "tiles / (ceil(tiles / 304) 304)",
        "by": "wave_efficiency",
        "source": "the mechanism: tiles run in waves of as many as there are units",
        "cases": (({"num_tiles": 304}, 1.0), ({"num_tiles": 305}, 0.5016447368421053)),
    },
)
# Rows of the second machine (microseconds on eight GPUs by mebibytes) that are not claimed: of these sizes the fitted machine
# has rows of its own, and a second measurement tests no law. Below 32 KiB: 13.3 to 24.4 us, whatever the size.
LEFT_OUT = {
    0.03125: 13.94, 0.0625: 14.25, 0.125: 14.6, 0.25: 17.46, 0.5: 27.3, 1: 28.39,
    2: 36.68, 4: 52.96, 8: 84.78, 16: 149.9, 32: 246.3, 64: 432.5,
}  # fmt: skip
# The platform (AMD Instinct MI300X data sheet and CDNA 3 white paper).
DEVICE, GPUS_PER_NODE, NUM_COMPUTE_UNITS = "MI300X", 8, 304
USABLE_SHARE = 48 / 64  # of a link, after checksums and protocol (AMD, as in the claims)
GIGA, PETA, MICRO, MEBI = 1e9, 1e15, 1e-6, 2**20
LARGE_MESSAGE_BYTES = 1e9  # in which latency is lost
PRODUCT_SIZE = 8192  # of a product that fills the compute units many times


@cache
def platform(num_nodes: int = 1) -> ClusterSpec:
    """Nodes of eight MI300X as the package knows them. Raises SpecError."""
    return Cluster(f"{num_nodes}x{GPUS_PER_NODE}x{DEVICE}")


def all_reduce_s(num_gpus: int, num_bytes: float, num_nodes: int = 1) -> float:
    """Seconds in which the first GPUs of some nodes sum a tensor, as `plan` prices it. Raises SpecError."""
    cluster = platform(num_nodes)
    if not 2 <= num_gpus <= cluster.num_devices:
        raise SpecError(f"an all-reduce on {num_gpus} GPUs", allowed=f"2 to {cluster.num_devices}")
    exchange = Exchange(("dp",), algorithm="all_reduce", dtype="float16")
    return NcclCollectives(cluster).exchange_cost(exchange, num_bytes, tuple(range(num_gpus))).seconds


def all_reduce_us(num_gpus: int, mebibytes: float, num_nodes: int = 1) -> float:
    """The same in microseconds."""
    return all_reduce_s(num_gpus, mebibytes * MEBI, num_nodes) / MICRO


def fitted_us(num_gpus: int, mebibytes: float) -> float:
    """The same of the rows that were fitted."""
    return all_reduce_us(num_gpus, mebibytes)


def by_bytes_us(num_gpus: int, mebibytes: float, num_nodes: int = 1) -> float:
    """Null: a ring's bytes over all links of a GPU, or all NICs of a node, at the data sheet's rate."""
    inner, outer = platform(2).levels
    links = inner.group_bytes_per_s(inner.num_devices)
    rate = links if num_nodes == 1 else inner.num_devices * outer.bandwidth_bytes_per_s
    return 2 * (num_gpus - 1) / num_gpus * mebibytes * MEBI / rate / MICRO


def whole_node_us(num_gpus: int, mebibytes: float) -> float:
    """Null: as long as on eight GPUs of the same machine, whatever the group."""
    return _published("fitted_us")[mebibytes]


def nearest_row_us(num_gpus: int, mebibytes: float) -> float:
    """Null: the other machine's row of that size; above its largest, that in proportion."""
    known = _published("fitted_us")
    nearest = min(mebibytes, max(known))
    return known[nearest] * mebibytes / nearest


def one_node_us(num_gpus: int, mebibytes: float, num_nodes: int) -> float:
    """Null: as long as on one node; above its largest row, that in proportion."""
    known = LEFT_OUT | _published("all_reduce_us")
    nearest = min(mebibytes, max(known))
    return known[nearest] * mebibytes / nearest


def _published(by: str) -> dict[float, float]:
    """Microseconds by mebibytes of the rows of one whole node."""
    claims: tuple[dict[str, Any], ...] = CLAIMS
    found = (case for claim in claims if claim["by"] == by for case in claim["cases"])
    return {
        arguments["mebibytes"]: value for arguments, value in found if arguments["num_gpus"] == GPUS_PER_NODE
    }


def usable_link() -> float:
    """GB/s of a very large message between two GPUs."""
    return GIGA / (all_reduce_s(2, 2 * GIGA * GIGA) - all_reduce_s(2, GIGA * GIGA))


def bus_bandwidth(num_gpus: int) -> float:
    """2 (n-1)/n S / t in GB/s, as nccl-tests counts, of a large message."""
    seconds = all_reduce_s(num_gpus, LARGE_MESSAGE_BYTES)
    return 2 * (num_gpus - 1) / num_gpus * LARGE_MESSAGE_BYTES / seconds / GIGA


def links_in_use(num_gpus: int) -> float:
    """GB/s that are usable of the links between the GPUs of a group, of one GPU."""
    return platform().levels[0].group_bytes_per_s(num_gpus) * USABLE_SHARE / GIGA


def product_pflops(num_nodes: int) -> float:
    """PFLOP/s of a large product on every GPU."""
    cluster, n = platform(num_nodes), PRODUCT_SIZE
    product = Operator("matmul", 2.0 * n**3, 3 * 2.0 * n**2, (n, n, n))
    seconds = Roofline(cluster).operator_s(product, "bfloat16", cluster.devices[0])
    return cluster.num_devices * product.flops / seconds / PETA


def zaya1() -> ModelSpec:
    """The paper's model by its published dimensions, as far as this package has its parts."""
    return ModelSpec.decoder(
        40, 2048, 8, num_kv_heads=2, head_dim=128, vocabulary_size=262272, max_sequence_length=32768,
        has_tied_embeddings=True, name="zaya1",
    ).changed(num_experts=16, num_experts_per_token=1, expert_intermediate_size=2048)  # fmt: skip


def zaya1_parameters(which: str) -> float:
    """Billions outside of the embedding: "all", or those that a token meets ("active")."""
    model = zaya1()
    one_expert = 3 * model.hidden_size * 2048
    embedding = model.vocabulary_size * model.hidden_size
    idle = 0 if which == "all" else model.num_layers * 15 * one_expert
    return (model.num_parameters - embedding - idle) / GIGA


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
