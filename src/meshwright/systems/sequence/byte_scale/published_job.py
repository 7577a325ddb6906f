"""Steps of the paper's job, by the layer times that it publishes and hardware that it does not name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from meshwright.specs.error import UnknownNameError
from meshwright.specs.sequence.group_seconds import busy_seconds, finish_seconds
from meshwright.specs.sequence.sequence_costs import FORWARD_SHARE, SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from meshwright.systems.sequence.best_fit import packed
from meshwright.systems.sequence.byte_scale.mechanism import ByteScale
from meshwright.systems.sequence.published_lengths import DATA_SETS, KIBI, drawn

# The job: LLaMA-7B on 1,024 devices, 8K tokens each, 32M tokens a step.
NUM_LAYERS, WIDTH, NUM_PARAMETERS = 32, 4096, 6.74e9
NUM_RANKS, RANK_TOKENS, STEP_TOKENS = 1024, 8 * KIBI, 32 * KIBI * KIBI
# Published milliseconds of a layer's forward at 64K and 128K, attention and feed-forward: attention is a s^2 + b s.
ATTENTION_MS, FEED_FORWARD_MS = {64: 48.2, 128: 175.5}, {64: 15.1, 128: 28.2}
# They are 900 to 1,260 TFLOP/s of this model, so of several devices; at 41 to 48 % of an A100's peak, of eight.
NUM_TIMED = 8
# MegaScale, on which the paper ran, has Ampere GPUs with a NIC of 200 Gb/s each (Jiang et al. 2024, arXiv 2402.15627).
NIC_BYTES_PER_S = 25e9
HOST_BYTES_PER_S = 25e9  # of 32 GB/s of PCIe 4.0 x16
HOST_BYTES = 125e9  # of 1 TB of a node of eight
TOKEN_BYTES = (
    34 * WIDTH * NUM_LAYERS
)  # kept for the backward (Korthikanti et al. 2022, without the square of lengths)
# A gigabyte of text in 20 s on the processors of a server (README of huggingface/tokenizers), four bytes a token.
READ_TOKENS_PER_S = 1e9 / 20 / 4
STEPS = ("static", "dynamic communication", "offload", "balance", "remote loading")
PUBLISHED_GAINS = (1.0, 1.59, 2.01, 3.69, 3.89)
NUM_BATCHES = 20


def layer_seconds() -> tuple[float, float]:
    """Forward seconds of a layer on one device: of the square of a sequence's tokens, and of a token."""
    square_ms = (ATTENTION_MS[128] - 2 * ATTENTION_MS[64]) / (2 * (64 * KIBI) ** 2)
    linear_ms = ATTENTION_MS[64] / (64 * KIBI) - square_ms * 64 * KIBI
    feed_forward_ms = FEED_FORWARD_MS[128] / (128 * KIBI)
    return NUM_TIMED * square_ms / 1e3, NUM_TIMED * (linear_ms + feed_forward_ms) / 1e3


@cache
def job_costs() -> SequenceCosts:
    """What groups of the job cost; keys, values and their gradients go around six times a token and layer."""
    square_s, token_s = layer_seconds()
    return SequenceCosts(
        square_s=square_s * NUM_LAYERS / FORWARD_SHARE,
        token_s=token_s * NUM_LAYERS / FORWARD_SHARE,
        fixed_s=0.0,
        token_bytes=TOKEN_BYTES,
        state_bytes=0.0,
        capacity_bytes=TOKEN_BYTES * RANK_TOKENS,
        rates={NUM_RANKS: NIC_BYTES_PER_S},
        is_beside=True,
        ring_bytes=6 * WIDTH * 2 * NUM_LAYERS,
        offload_bytes=TOKEN_BYTES * (NUM_LAYERS - 2) / NUM_LAYERS,
        offload_rate=HOST_BYTES_PER_S,
        host_bytes=HOST_BYTES,
    )


def static_groups(lengths: Sequence[int], context: int) -> GroupedBatch:
    """Packs of the context's tokens, each over as many ranks as hold it, in turn: even in tokens, which rings take as long
    as (the core's static groups are even in computes, and here 1.7 times as slow)."""
    degree = context // RANK_TOKENS
    groups = []
    for number, pack in enumerate(packed(lengths, range(len(lengths)), context)):
        first = number * degree % NUM_RANKS
        groups.append(SequenceGroup(tuple(range(first, first + degree)), pack))
    return GroupedBatch(tuple(lengths), NUM_RANKS, tuple(groups))


def groups_of(step: str, lengths: Sequence[int], context: int) -> GroupedBatch:
    """The groups of a step by one of `STEPS`."""
    if step not in STEPS:
        raise UnknownNameError("step", step, STEPS)
    if step == "static":
        return static_groups(lengths, context)
    balance = "dp" if STEPS.index(step) >= STEPS.index("balance") else "none"
    return ByteScale(balance, offloads=step != "dynamic communication")(lengths, NUM_RANKS, job_costs())


def loading_seconds(is_remote: bool) -> float:
    """Seconds in which a step's tokens are read: by every node all of them, as each may be given any; or once, by servers,
    while the step before runs."""
    return 0.0 if is_remote else STEP_TOKENS / READ_TOKENS_PER_S


def reducing_seconds() -> float:
    """Gradients are reduced in float32 and parameters gathered in bfloat16, over all ranks."""
    return (4 + 2) * NUM_PARAMETERS / NIC_BYTES_PER_S


@cache
def grouped_steps(step: str, data: str, context: int) -> tuple[GroupedBatch, ...]:
    """Groups of drawn steps, of the same draws for every way to group them. Raises UnknownNameError."""
    if data not in DATA_SETS:
        raise UnknownNameError("data set", data, DATA_SETS)
    rng = np.random.default_rng(0)
    every = [drawn(DATA_SETS[data], STEP_TOKENS, context * KIBI, rng) for _ in range(NUM_BATCHES)]
    return tuple(groups_of(step, lengths, context * KIBI) for lengths in every)


@cache
def step_seconds(step: str, data: str = "Byted", context: int = 2048) -> float:
    """Mean seconds of the job's steps; `context` in units of 1,024 tokens. Raises UnknownNameError."""
    found = [max(finish_seconds(batch, job_costs())) for batch in grouped_steps(step, data, context)]
    return float(np.mean(found)) + loading_seconds(step == STEPS[-1]) + reducing_seconds()


def gain(step: str, data: str = "Byted", context: int = 2048) -> float:
    """Seconds of a static step over those of this one."""
    return step_seconds("static", data, context) / step_seconds(step, data, context)


def headline(data: str, context: int) -> float:
    """Seconds of a static step over those of one with all of the paper's."""
    return gain(STEPS[-1], data, context)


def gain_before(step: str) -> float:
    """The published factor of the ablation without this step of it."""
    return PUBLISHED_GAINS[STEPS.index(step) - 1]


def num_ordered() -> int:
    """Neighbours of the ablation of which the later is faster."""
    seconds = [step_seconds(step) for step in STEPS]
    return sum(before > behind for before, behind in zip(seconds, seconds[1:]))


def doubling(step: str) -> float:
    """By what a step is slower for twice the context, from 256K to 2M."""
    factor: float = step_seconds(step, context=2048) / step_seconds(step, context=256)
    return math.exp(math.log(factor) / 3)


def even_seconds(step: str) -> float:
    """Mean seconds of a rank's groups: of a step whose ranks all have as much to do."""
    return float(np.mean([busy_seconds(batch, job_costs()) for batch in grouped_steps(step, "Byted", 2048)]))


def least_seconds(step: str) -> float:
    """What knows nothing of groups says of a step: rings over the NIC where it is static, else computes divided evenly."""
    costs = job_costs()
    if step == "static":
        group_s = costs.exchange_seconds((2048 * KIBI,), 2048 * KIBI // RANK_TOKENS)
        return STEP_TOKENS / (NUM_RANKS * RANK_TOKENS) * group_s
    lengths = [batch.lengths for batch in grouped_steps(step, "Byted", 2048)]
    return float(np.mean([costs.compute_seconds(one, NUM_RANKS) for one in lengths]))


def even_rank_seconds(which: str) -> float:
    """The same of ranks that are all as busy as the mean."""
    return 0.0 if which == "standard deviation" else even_seconds("dynamic communication")


def rank_seconds(which: str) -> float:
    """Of what ranks are busy in a naive step the least, the most, or the standard deviation; the median of steps."""
    told: Mapping[str, Callable[[list[float]], float]] = {
        "least": min, "most": max, "standard deviation": statistics.pstdev,
    }  # fmt: skip
    naive = grouped_steps("dynamic communication", "Byted", 2048)
    return float(np.median([told[which](busy_seconds(batch, job_costs())) for batch in naive]))


def communication_share() -> float:
    """Of the seconds of a static microbatch, those of its exchanges."""
    costs, shares = job_costs(), []
    for batch in grouped_steps("static", "Byted", 2048)[:1]:
        for group in batch.groups:
            own = batch.group_lengths(group)
            shares.append(costs.exchange_seconds(own, group.degree) / costs.seconds(own, group.degree))
    return float(np.median(shares))


def alone_ratio(length: int, degree: int, beside: bool = True) -> float:
    """Seconds of a sequence on some ranks over those of its computes alone; `beside`: its hops run beside attention."""
    costs = replace(job_costs(), is_beside=beside)
    return costs.seconds((length * KIBI,), degree) / costs.compute_seconds((length * KIBI,), degree)


def one_behind_the_other(length: int, degree: int) -> float:
    """The same, where hops hide behind nothing."""
    return alone_ratio(length, degree, beside=False)


def saved_memory(ratio: float, state_bytes: float, tp: int) -> float:
    """Of the bytes of a device with 8K tokens, the share that an offloaded ratio saves; `state_bytes` of a parameter."""
    costs = job_costs()
    state = NUM_PARAMETERS * state_bytes / tp
    held = [costs.held_bytes((RANK_TOKENS,), 1, one) + state for one in (0.0, ratio)]
    return 1 - held[1] / held[0]


def every_layer_saved(ratio: float, state_bytes: float, tp: int) -> float:
    """The same, where nothing but what is kept for the backward takes memory, and all of its layers are offloaded."""
    return ratio


def offload_seconds(length: int, ratio: float) -> float:
    """Seconds that an offloaded ratio adds to a sequence on the devices that the layer times are of."""
    return job_costs().offload_seconds((length * KIBI,), NUM_TIMED, ratio)


def offload_in_turn(length: int, ratio: float) -> float:
    """The same, where bytes to the host and back hide behind nothing."""
    costs = job_costs()
    return 2 * ratio * costs.offload_bytes * length * KIBI / (NUM_TIMED * costs.offload_rate)


@cache
def _many(data: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Lengths of sixty steps."""
    return np.array(drawn(DATA_SETS[data], 60 * STEP_TOKENS, 2048 * KIBI, np.random.default_rng(0)), float)


def tail(data: str, what: str, least: int) -> float:
    """The share of "sequences" or "tokens" in sequences of at least so many units of 1,024 tokens."""
    lengths = _many(data)
    weights = lengths if what == "tokens" else np.ones(len(lengths))
    return float(weights[lengths >= least * KIBI].sum() / weights.sum())
