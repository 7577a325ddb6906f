"""ExpertFlow on the torch engine: tokens, counts and bytes with a few experts here; batches by paths, routed or predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.executor.models.weights.initialisation import RandomValues
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import ServedModel
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.weight.expert_place import ExpertCounts
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.moe.expert_flow.mechanism import (
    CachedExperts,
    Request,
    Routing,
    SlotCache,
    by_path,
    mean_active,
    run,
)

LAYERS, EXPERTS, FLOAT_BYTES = 4, 8, 4
MODEL = ModelSpec.of_dimensions(
    "drawn experts", "mixtral", num_layers=LAYERS, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
    intermediate_size=96, vocabulary_size=97, max_sequence_length=64, num_experts=EXPERTS, num_experts_per_token=2,
    expert_intermediate_size=96,
)  # fmt: skip
EXPERT_BYTES = FLOAT_BYTES * 3 * 64 * 96
SERVED = ServedModel(MODEL, RandomValues(LAYERS), "float32", Path())
PROMPTS, LENGTH, DECODES, BLOCK = 3, 9, 12, 32
OPTIONS = RunnerOptions(dtype="float32", block_tokens=BLOCK, num_blocks=64, num_threads=1)
PLACE = CachedExperts(slots=12, ahead=2)
BATCH, NUM_SINGLE = 4, 32
TOPICS, TOPIC_TOKENS, TOPIC_PROMPTS, PROMPT_TOKENS, TOPIC_DECODES = (
    8,
    4,
    4,
    4,
    6,
)  # of prompts that come mixed


class RecordedRouting(SlotCache):
    """A cache that keeps what was routed."""

    def __init__(self, cache: SlotCache) -> None:
        super().__init__(cache.num_slots, cache.order, cache.most_ahead)
        self.requests: list[Request] = []

    def begin(self, layer: int, experts_TK: Routing) -> None:
        """Kept."""
        self.requests.append((layer, experts_TK.copy()))
        super().begin(layer, experts_TK)


class ServedTokens(NamedTuple):
    """Greedy tokens [steps, sequences], what the engine counted (None: all experts are here), and what was routed."""

    tokens: NDArray[np.int64]
    counts: ExpertCounts | None
    requests: Sequence[Request]


def step_of(tokens_BT: NDArray[np.int64], past: int, first: int = 0) -> StepInputs:
    """A step of sequences with `past` tokens each, the n-th in block `first` + n; logits of the last rows."""
    num, count = tokens_BT.shape
    starts = count * np.arange(num + 1)
    return StepInputs(
        token_ids=tokens_BT.reshape(-1), positions=np.tile(past + np.arange(count), num),
        query_starts=starts.astype(np.int32), past_lengths=np.full(num, past, np.int32),
        block_ids=(first + np.arange(num)).astype(np.int32), block_starts=np.arange(num + 1, dtype=np.int32),
        max_context=past + count, rows=starts[1:] - 1,
    )  # fmt: skip


def drawn_tokens(num: int, length: int, seed: int = 0) -> NDArray[np.int64]:
    """Prompts [num, length]."""
    return np.random.default_rng(seed).integers(0, MODEL.vocabulary_size, (num, length))


def served(cache: SlotCache | None) -> ServedTokens:
    """Three prompts and twelve decodes."""
    recorded = None if cache is None else RecordedRouting(cache)
    runner = TorchRunner(SERVED, OPTIONS, recorded)
    tokens_BT, past, found = drawn_tokens(PROMPTS, LENGTH), 0, []
    for _ in range(1 + DECODES):
        logits_BV = runner.forward(step_of(tokens_BT, past))
        past += tokens_BT.shape[1]
        tokens_BT = logits_BV.argmax(1)[:, None].astype(np.int64)
        found.append(tokens_BT[:, 0])
    counts = runner.expert_counts
    runner.close()
    return ServedTokens(np.array(found), counts, [] if recorded is None else recorded.requests)


def equal_tokens(order: str) -> float:
    """Share of greedy tokens that are those of an engine with all experts."""
    comes, stays = served(replace(PLACE, order=order).expert_cache()), served(None)
    return float((comes.tokens == stays.tokens).mean())


def hits_over_traced(order: str) -> float:
    """Of the engine, over those of a cache that is told what was routed."""
    place = replace(PLACE, order=order)
    found = served(place.expert_cache())
    traced = run(place.expert_cache(), found.requests)
    assert found.counts is not None
    assert (found.counts.misses, found.counts.came_ahead) == (traced.misses, traced.came_ahead)
    return found.counts.hits / traced.hits


def peak_over_places(order: str) -> float:
    """Bytes of experts at their most, over those of twelve."""
    counts = served(replace(PLACE, order=order).expert_cache()).counts
    assert counts is not None
    return counts.peak_bytes / (PLACE.slots * EXPERT_BYTES)


def batched(
    runner: TorchRunner, tokens_N: NDArray[np.int64], order: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Logits [N, V] of prompts of one token, computed in batches of four in this order, in the order of `tokens_N`."""
    sorted_N1 = tokens_N[order][:, None]
    found = [
        runner.forward(step_of(sorted_N1[first : first + BATCH], 0)).copy()
        for first in range(0, len(order), BATCH)
    ]
    logits_NV: NDArray[np.float32] = np.concatenate(found)[order.argsort()]
    return logits_NV


def routed(tokens_N: NDArray[np.int64], num_slots: int = LAYERS * EXPERTS) -> Routing:
    """Paths [N, L, K] of prompts of one token."""
    cache = RecordedRouting(CachedExperts(slots=num_slots, ahead=0).expert_cache())
    runner = TorchRunner(SERVED, OPTIONS, cache)
    runner.forward(step_of(tokens_N[:, None], 0))
    runner.close()
    return np.stack([experts_TK for _, experts_TK in cache.requests], 1)


def restored_difference() -> float:
    """Largest difference of a logit between batches by path, put back, and batches by arrival, over the largest logit."""
    tokens_N = drawn_tokens(NUM_SINGLE, 1, 1)[:, 0]
    paths = routed(tokens_N)
    order = by_path(paths, BATCH)
    assert mean_active(paths[order], BATCH) < mean_active(paths, BATCH), "there is an order to put back"
    runner = TorchRunner(SERVED, replace(OPTIONS, dtype="float64"))
    by_arrival, regrouped = (batched(runner, tokens_N, each) for each in (np.arange(NUM_SINGLE), order))
    runner.close()
    return float(np.abs(by_arrival - regrouped).max() / np.abs(by_arrival).max())


class ServedBatches(NamedTuple):
    """Of prompts in the order in which they came: greedy tokens [N, steps], logits [N, steps, V]; and experts that a step of
    a batch has in all layers together, mean over batches, [steps], the prompts' first."""

    tokens: NDArray[np.int64]
    logits: NDArray[np.float32]
    active: NDArray[np.float64]


def topic_prompts(seed: int) -> NDArray[np.int64]:
    """Prompts [N, P] of eight topics that have four words each, in a mixed order."""
    draw = np.random.default_rng(seed)
    words = draw.permutation(MODEL.vocabulary_size)[: TOPICS * TOPIC_TOKENS].reshape(TOPICS, TOPIC_TOKENS)
    topics = draw.permutation(np.repeat(np.arange(TOPICS), TOPIC_PROMPTS))
    return np.stack([draw.choice(words[topic], PROMPT_TOKENS) for topic in topics])


def predicted_paths(prompts_NP: NDArray[np.int64]) -> Routing:
    """[N, L, P K]: where each token of a prompt goes where nothing stands before it, known before the prompt runs."""
    ids = np.arange(MODEL.vocabulary_size)
    paths_VLK = np.concatenate([routed(ids[at : at + NUM_SINGLE]) for at in range(0, len(ids), NUM_SINGLE)])
    return np.concatenate([paths_VLK[each] for each in prompts_NP.T], 2)


def served_batches(prompts_NP: NDArray[np.int64], order: NDArray[np.int64]) -> ServedBatches:
    """Four prompts and six decodes of each at a time, in this order, in float64 with all experts here."""
    cache = RecordedRouting(CachedExperts(slots=LAYERS * EXPERTS, ahead=0).expert_cache())
    runner, tokens, logits = TorchRunner(SERVED, replace(OPTIONS, dtype="float64"), cache), [], []
    for first in range(0, len(order), BATCH):
        tokens_BT, past, steps = prompts_NP[order[first : first + BATCH]], 0, []
        for _ in range(1 + TOPIC_DECODES):
            steps.append(runner.forward(step_of(tokens_BT, past)).copy())
            past += tokens_BT.shape[1]
            tokens_BT = steps[-1].argmax(1)[:, None].astype(np.int64)
        logits.append(np.stack(steps, 1))
        tokens.append(logits[-1].argmax(2))
    runner.close()
    active = np.array([len(np.unique(experts)) for _, experts in cache.requests])
    by_step = active.reshape(-1, 1 + TOPIC_DECODES, LAYERS).sum(2).mean(0)
    back = order.argsort()
    return ServedBatches(np.concatenate(tokens)[back], np.concatenate(logits)[back], by_step)


def regrouped(seed: int) -> tuple[ServedBatches, ServedBatches]:
    """Batches by arrival, and by predicted path."""
    prompts_NP = topic_prompts(seed)
    order = by_path(predicted_paths(prompts_NP), BATCH)
    return served_batches(prompts_NP, np.arange(len(prompts_NP))), served_batches(prompts_NP, order)


def regrouped_difference(seed: int) -> float:
    """Largest difference of a logit of any step between both, over the largest logit; tokens are the same."""
    arrival, path = regrouped(seed)
    assert (arrival.tokens == path.tokens).all(), "greedy tokens depend on who shares a batch"
    return float(np.abs(arrival.logits - path.logits).max() / np.abs(arrival.logits).max())
