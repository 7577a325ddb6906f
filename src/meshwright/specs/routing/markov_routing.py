"""Routing that is drawn: a Markov chain of experts, whose transitions have a Dirichlet distribution. No model made it."""

from __future__ import annotations

import numpy as np

from meshwright.specs.error import SpecError
from meshwright.specs.routing.routing_trace import RoutingTrace

PER_TOKEN = 1  # experts a token goes to: a chain has one a layer


def markov_trace(
    num_tokens: int, num_layers: int, num_experts: int, concentration: float, seed: int
) -> RoutingTrace:
    """T tokens through L layers of E experts, one a layer.

    The first expert is uniform; row a of a layer's transitions is drawn from a symmetric Dirichlet distribution: the smaller
    its `concentration`, the more an expert says about the next, and the less even their loads are. Raises SpecError.
    """
    if min(num_tokens, num_layers, num_experts) < 1 or not concentration > 0:
        raise SpecError(
            f"a chain of {num_tokens} tokens, {num_layers} layers, {num_experts} experts, concentration {concentration:g}",
            allowed="one of each at least, and a concentration above 0",
        )
    random = np.random.default_rng(seed)
    found = np.empty((num_tokens, num_layers, PER_TOKEN), np.int16)
    found[:, 0, 0] = random.integers(num_experts, size=num_tokens)
    for layer in range(1, num_layers):
        rows = random.dirichlet(np.full(num_experts, concentration), num_experts)
        edges = rows.cumsum(1)
        drawn = random.random(num_tokens)
        chosen = (edges[found[:, layer - 1, 0]] < drawn[:, None]).sum(1)
        found[:, layer, 0] = np.minimum(chosen, num_experts - 1)  # sums of shares end a rounding below one
    source = f"Markov chain, Dirichlet concentration {concentration:g}, seed {seed}"
    return RoutingTrace(found, num_experts, tuple(range(num_layers)), source=source, origin="drawn")
