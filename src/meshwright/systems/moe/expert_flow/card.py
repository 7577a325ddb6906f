"""A few experts are on the device, and a predictor says which come next; tokens that share experts are batched together.

Paper:      ExpertFlow: Optimized Expert Activation and Token Allocation for Efficient Mixture-of-Experts Inference, Xin He,
            Shunkang Zhang, Yuxin Wang, Haiyan Yin, Zihao Zeng, Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Ivor Tsang,
            Ong Yew Soon, 2024, arXiv 2410.17954
Problem:    A mixture of experts does not fit into the memory of one device, and a token needs few of its experts.
Idea:       Experts lie with the host; a device has places for a few of all layers together. A predictor says before a
            layer is routed which experts come next, so they come while others compute; on a miss who is expected last goes.
            A miss costs (bytes of an expert) / (rate of the link). Tokens of neighbouring batches are exchanged so
            that a batch has those whose predicted paths share experts, which leaves fewer experts to come for it.
Kind:       policy
Use:        meshwright run 'expert_flow(routing="ROUTING", slots=16)'; on a mixture of experts of your own meshwright serve
            FOLDER --engine torch --weights 'expert_flow(slots=16)', and generate (order=recent or frequent: no predictor;
            ahead: experts that come behind a layer)
Simulated:  hits of caches on a routing, and seconds of steps that wait for what they miss (mechanism.py). A plan for a load
            refuses it: it has no routing to price by
Executed:   torch engine, one process: only experts that a step's routing asks for, or a predictor expects, are read from the
            model's files, into a bounded number of places; tokens are those of an engine that holds all, live bytes,
            hits, misses are counted and equal those of the cache on the recorded routing. Batches by path: study.py
Differs:    1. The paper's predictor is a T5 of 7 MB, trained on 10,000 inputs, that names the experts of all layers before
            decoding. It is not rebuilt. Ours counts, while it serves, where tokens of an expert went in the layer behind,
            and looks ahead to the last layer; of a predictor of a told accuracy (`foretold`) there are caches on paper.
            2. Places are of all layers together: who is expected last goes, of whichever layer. The paper allots them to
            layers by predicted demand.
            3. Experts are read from the model's files (which may lie in the page cache), not from pinned memory over PCIe.
            4. Batches by path are a function and a study, in which a token's path where it stands alone predicts it: the
            scheduler of the serving engine admits by arrival, and has no word for a preference among those who wait.
            5. The abstract is what we read; which baseline, model and device 2 and 10 times are of it does not say. Ours are
            against a cache as large that keeps what was used last, on a drawn routing (its seed and concentration are
            below) and an A40 by its data sheet: no host, no kernel launches, which both arms have alike. From notes of
            others: 10 times on Switch-128, 2 on Mixtral, 15.26 GB become 1.03.
            6. Places for a batch of four tokens, one expert in each layer, are our choice for 93.72 %: the cache's size
            behind that number was not read.
"""

from __future__ import annotations

import numpy as np

from meshwright.serving.weight.expert_place import Expert
from meshwright.systems.moe.expert_flow.mechanism import (
    LeastRecent,
    Offloaded,
    Request,
    Routing,
    SlotCache,
    distinct,
    foretold,
    requests_of,
    run,
)

FILLS = {"weights": "mechanism:CachedExperts", "job": "job:CacheComparison"}
CLAIMS = (
    {
        "claim": "share of the memory of Switch-128's weights that is saved, {slots} places",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.05,
        "reason": "what is computed with beside weights is left out, and the number of places is ours",
        "how": "bytes of all parameters in 16 bits, against those without experts and places",
        "by": "saved_share",
        "source": "abstract: 'up to 93.72 % GPU memory savings'",
        "null": {"no effect": 0.0},
        "cases": (({"slots": 48}, 0.9372),),
    },
    {
        "claim": "{model}: times quicker than with a cache as large that keeps what was used last",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "the routing is drawn, the device is its data sheet, the baseline not told",
        "how": "misses of both caches on one drawn routing; a step waits for each",
        "by": "times_quicker",
        "source": "abstract: '2 to 10 times'; which model: see Differs 5",
        "null": {"no effect": 1.0},
        "cases": (({"model": "Switch-128"}, 10.0), ({"model": "Mixtral-8x7B"}, 2.0)),
    },
    {
        "claim": "hits of a predictor that is always right and fetches nothing ahead, over those of Belady's rule",
        "kind": "identity",
        "unit": "x",
        "tolerance": 1e-12,
        "reason": "one is the other; a test tries every possible cache, with and without experts ahead, on small routings",
        "how": "the drawn routing, 32 places; the rule on a list of uses",
        "by": "oracle_over_belady",
        "source": "the mechanism",
        "cases": (({}, 1.0),),
    },
    {
        "claim": "greedy tokens that are those of an engine that holds all experts, {order}",
        "kind": "measured",
        "unit": "share",
        "tolerance": 1e-12,
        "reason": "the same products of the same numbers",
        "how": "a drawn Mixtral of 4 layers of 8 experts in the torch engine, 12 places",
        "by": "study:equal_tokens",
        "source": "the mechanism: a cache changes no output",
        "cases": (({"order": "learned"}, 1.0), ({"order": "recent"}, 1.0)),
    },
    {
        "claim": "hits in the engine over hits of the cache on the recorded routing, {order}",
        "kind": "measured",
        "unit": "x",
        "tolerance": 1e-12,
        "reason": "counts",
        "how": "reads of the engine's files, against the mechanism on what was routed",
        "by": "study:hits_over_traced",
        "source": "the mechanism",
        "cases": (({"order": "learned"}, 1.0), ({"order": "frequent"}, 1.0)),
    },
    {
        "claim": "most bytes of experts at any time over those of the places, {order}",
        "kind": "measured",
        "unit": "x",
        "tolerance": 1e-12,
        "reason": "counts",
        "how": "as above",
        "by": "study:peak_over_places",
        "source": "the mechanism: slots experts at most",
        "cases": (({"order": "learned"}, 1.0),),
    },
    {
        "claim": "largest difference of a logit, prompts in batches by path and put back, over the largest logit",
        "kind": "measured",
        "unit": "relative",
        "tolerance": 1e-10,
        "reason": "the policy of docs/design.md for float64",
        "how": "against batches by arrival, the torch engine in float64",
        "by": "study:restored_difference",
        "source": "the mechanism: who shares a batch changes nothing",
        "cases": (({}, 0.0),),
    },
    {
        "claim": "likewise, 32 prompts of eight topics, six tokens behind each, paths predicted token by token, seed {seed}",
        "kind": "measured",
        "unit": "relative",
        "tolerance": 1e-10,
        "reason": "as above",
        "how": "as above; tokens are the same",
        "by": "study:regrouped_difference",
        "source": "as above",
        "cases": (({"seed": 0}, 0.0),),
    },
)  # fmt: skip
HALF_BYTES = 2
# Switch-Base (Fedus et al. 2021, arXiv 2101.03961): T5-Base, 12 + 12 layers, in every other one experts.
SWITCH_HIDDEN, SWITCH_INNER, SWITCH_LAYERS, SWITCH_EXPERTS, SWITCH_TABLE = 768, 3072, 24, 128, 32128
SWITCH_CROSS = 12  # layers that attend to the encoder, too
A40_BYTES_PER_S, PCIE4_BYTES_PER_S = (
    696e9,
    31.5e9,
)  # NVIDIA A40 data sheet; 16 lanes of 16 GT/s, 128 of 130 bits
BATCH, TOKENS, CONCENTRATION, SEED = 4, 400, 0.3, 0
# Layers with experts, experts, experts a token, numbers of an expert, of a layer beside them, places.
MODELS = {
    "Switch-128": (12, 128, 1, 2 * 768 * 3072, 2 * 4 * 768**2 + 2 * 768 * 3072 + 4 * 768**2, 48),
    "Mixtral-8x7B": (32, 8, 2, 3 * 4096 * 14336, 2 * 4096**2 + 2 * 4096 * 1024, 64),
}  # fmt: skip


def markov_routing(
    tokens: int, layers: int, experts: int, k: int, concentration: float, seed: int
) -> Routing:
    """Drawn routing [T, L, K]: every expert of a layer has shares of those behind it, drawn from a Dirichlet distribution of
    this concentration (the smaller, the more certain); a token's experts are different."""
    draw = np.random.default_rng(seed)
    shares_LXX = draw.dirichlet(np.full(experts, concentration), (layers, experts))
    found = np.empty((tokens, layers, k), np.int64)
    for token in range(tokens):
        before = int(draw.integers(experts))
        for layer in range(layers):
            keys = np.log(shares_LXX[layer, before] + 1e-300) + draw.gumbel(size=experts)
            found[token, layer] = np.argsort(-keys)[:k]
            before = int(found[token, layer, 0])
    return found


def saved_share(slots: int) -> float:
    """Of Switch-128."""
    expert = 2 * SWITCH_HIDDEN * SWITCH_INNER
    attention = 4 * SWITCH_HIDDEN**2 * (SWITCH_LAYERS + SWITCH_CROSS)
    mixed = SWITCH_LAYERS // 2
    stays = SWITCH_TABLE * SWITCH_HIDDEN + attention + mixed * (expert + SWITCH_EXPERTS * SWITCH_HIDDEN)
    return 1.0 - (stays + slots * expert) / (stays + mixed * SWITCH_EXPERTS * expert)


def _drawn(model: str) -> tuple[list[Request], int, Offloaded, int]:
    """Requests, experts of a layer, the link, places."""
    layers, experts, k, numbers, beside, slots = MODELS[model]
    requests = requests_of(markov_routing(TOKENS, layers, experts, k, CONCENTRATION, SEED), BATCH)
    active = np.mean([len(np.unique(each)) for _, each in requests])
    layer_s = HALF_BYTES * (beside + float(active) * numbers) / A40_BYTES_PER_S
    return requests, experts, Offloaded(HALF_BYTES * numbers, PCIE4_BYTES_PER_S, layer_s), slots


def times_quicker(model: str, accuracy: float = 0.9) -> float:
    """By a predictor that is right nine times of ten."""
    requests, experts, link, slots = _drawn(model)
    recent = run(SlotCache(slots, LeastRecent()), requests)
    predicted = run(SlotCache(slots, foretold(requests, experts, accuracy, SEED), link.most_ahead), requests)
    return link.seconds(recent, len(requests)) / link.seconds(predicted, len(requests))


def oracle_over_belady() -> float:
    """On a routing of Switch-128's shape."""
    requests = requests_of(markov_routing(100, 12, 128, 1, CONCENTRATION, SEED), BATCH)
    oracle = run(SlotCache(32, foretold(requests, 128, 1.0, SEED)), requests)
    return oracle.hits / _belady_hits([(layer, x) for layer, each in requests for x in distinct(each)], 32)


def _belady_hits(uses: list[Expert], slots: int) -> int:
    """Whoever is used again last goes (Belady 1966), on a list of single uses."""
    held, found = set[Expert](), 0
    for at, own in enumerate(uses):
        found += own in held
        if own not in held and len(held) == slots:
            rest = uses[at:]
            held.discard(max(held, key=lambda each: rest.index(each) if each in rest else len(rest)))
        held.add(own)
    return found
