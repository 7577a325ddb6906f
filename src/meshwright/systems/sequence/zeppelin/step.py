"""Seconds of steps: one ring over all ranks, and zones with routed hops and remapped tokens, on the same lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from meshwright.costs.roofline import Roofline
from meshwright.ir.table import Exchange
from meshwright.prediction.sequence.fitted_costs import sequence_costs_of
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import UnknownNameError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.group_seconds import finish_seconds
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.specs.sequence.static_groups import StaticGroups
from meshwright.systems.sequence.published_lengths import DATA_SETS, KIBI, drawn
from meshwright.systems.sequence.zeppelin.mechanism import Zeppelin
from meshwright.systems.sequence.zeppelin.remap import remapped
from meshwright.systems.sequence.zeppelin.routed_hop import AXIS, hop_seconds

MODEL, DEVICE, NIC = "llama-2-7b", "A100-80", "200Gb/s"
NODE, RANK_TOKENS = 8, 4 * KIBI  # a sequence as long as all devices together hold is the context
NUM_MICROBATCHES, NUM_STEPS = 8, 10
ROUNDS = 8  # of pieces of a routed message
NUM_MOVES = 4  # of a layer: to linear layers and back, forwards and backwards
PARTS = ("ring over all", "zones", "zones, routed", "zones, routed, remapped")


def cluster_of(devices: int) -> ClusterSpec:
    """Nodes of eight devices, each with a NIC."""
    return Cluster(f"{devices // NODE}x{NODE}x{DEVICE}", nic=NIC)


@cache
def costs_of(devices: int, is_routed: bool) -> SequenceCosts:
    """What groups cost: computes as fitted to a plan, rings at the rate of the slowest hop, as it is or routed."""
    cluster, model = cluster_of(devices), load_model(MODEL)
    workload = Workload(devices, RANK_TOKENS)
    plan = Plan.of(
        model.changed(max_sequence_length=devices * RANK_TOKENS), cluster, workload,
        dtype="bfloat16", dp=devices, context="ring", sharding="zero1",
    )  # fmt: skip
    fitted = sequence_costs_of(plan, cluster)
    num_bytes = 4.0 * model.hidden_size * RANK_TOKENS  # keys and values in bfloat16
    hop_s = hop_seconds(cluster, num_bytes, NODE if is_routed else 1, ROUNDS if is_routed else 1)
    within = Roofline(cluster).exchange_cost(Exchange((AXIS,), ends=(0, 1)), num_bytes, (0, 1))
    node_rate = num_bytes / within.seconds
    return replace(
        fitted,
        capacity_bytes=fitted.state_bytes + fitted.token_bytes * RANK_TOKENS,
        rates={NODE: node_rate, devices: min(node_rate, num_bytes / hop_s)},
        exchange_s=0.0,
    )


def step_seconds(part: str, lengths: Sequence[int], devices: int) -> float:
    """Seconds of a step with these sequences. Raises UnknownNameError."""
    if part not in PARTS:
        raise UnknownNameError("part", part, PARTS)
    costs = costs_of(devices, "routed" in part)
    grouping = StaticGroups() if part == PARTS[0] else Zeppelin(NODE)
    batch = grouping(lengths, devices, costs)
    whole_s = max(finish_seconds(batch, costs))
    return min(whole_s, remapped_seconds(batch, costs)) if "remapped" in part else whole_s


def remapped_seconds(batch: GroupedBatch, costs: SequenceCosts) -> float:
    """Seconds where linear layers have their even share of tokens, and what surpluses take on their way there and back."""
    attention_s = max(finish_seconds(batch, replace(costs, token_s=0.0)))
    tokens = tokens_of_ranks(batch)
    sent = [
        [0, 0] for _ in tokens
    ]  # of every rank the tokens that it sends or is sent, within its node and between nodes
    for move in remapped(tokens, NODE):
        for rank in (move.source, move.target):
            sent[rank][move.source // NODE != move.target // NODE] += move.num_tokens
    model = load_model(MODEL)
    token_bytes = 2.0 * model.hidden_size * NUM_MOVES * model.num_layers
    rates = (costs.rate(NODE), costs.rate(batch.num_ranks))
    moved_s = max(sum(token_bytes * one / rate for one, rate in zip(own, rates, strict=True)) for own in sent)
    return attention_s + costs.token_s * batch.num_tokens / batch.num_ranks + moved_s


def tokens_of_ranks(batch: GroupedBatch) -> list[int]:
    """Of every rank the tokens that attention leaves it with, in all of its groups."""
    tokens = [0] * batch.num_ranks
    for group in batch.groups:
        own = sum(batch.group_lengths(group))
        for place, rank in enumerate(group.ranks):
            tokens[rank] += own * (place + 1) // group.degree - own * place // group.degree
    return tokens


@cache
def speed_up(data: str, devices: int, part: str = PARTS[-1]) -> float:
    """Seconds of steps of a ring over all ranks over those of a part; lengths cut at what all devices hold together."""
    if data not in DATA_SETS:
        raise UnknownNameError("data set", data, DATA_SETS)
    rng, context = np.random.default_rng(0), devices * RANK_TOKENS
    steps = [drawn(DATA_SETS[data], NUM_MICROBATCHES * context, context, rng) for _ in range(NUM_STEPS)]
    ring_s, own_s = (
        sum(step_seconds(one, lengths, devices) for lengths in steps) for one in (PARTS[0], part)
    )
    return ring_s / own_s


def mean_speed_up(devices: tuple[int, ...] = (16, 32, 64)) -> float:
    """Over data sets and numbers of devices."""
    return float(np.mean([speed_up(data, count) for data in DATA_SETS for count in devices]))
