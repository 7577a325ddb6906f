"""Placements of experts that tests of served models share: permutations of every layer's, and copies of some."""

from __future__ import annotations

import numpy as np

from meshwright.specs.model.model import ModelSpec

Slots = tuple[tuple[int, ...], ...]


def slots_of(model: ModelSpec, num_devices: int, num_copies: int, seed: int = 3) -> Slots:
    """A permutation of its own of every layer's experts, and copies of the first ones, never two on one device."""
    draw, found = np.random.default_rng(seed), []
    for number in range(model.num_layers):
        experts = model.layers[number].experts
        if experts is None:
            found.append(())
            continue
        order = draw.permutation(experts.num_experts).tolist()
        each = len(order) // num_devices
        rows = [order[device * each : (device + 1) * each] for device in range(num_devices)]
        for device, row in enumerate(rows):
            row += rows[(device + 1) % num_devices][: num_copies // num_devices]
        found.append(tuple(expert for row in rows for expert in row))
    return tuple(found)
