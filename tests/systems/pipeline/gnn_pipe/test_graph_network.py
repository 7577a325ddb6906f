"""Layers of a graph network: their shapes, and which stage has them."""

from __future__ import annotations

import pytest

from meshwright.specs.error import SpecError
from meshwright.systems.pipeline.gnn_pipe.graph_network import GraphNetwork

NETWORK = GraphNetwork(5, 8, 20, 3)


def test_shapes_and_parameters_by_hand() -> None:
    assert [NETWORK.shape(layer) for layer in (0, 1, 4)] == [(20, 8), (8, 8), (8, 3)]
    assert [NETWORK.num_parameters(layer) for layer in (0, 4)] == [168, 27]
    assert GraphNetwork(1, 8, 20, 3).shape(0) == (20, 3)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_every_layer_is_on_one_stage(num_stages: int) -> None:
    split = [NETWORK.layers(stage, num_stages) for stage in range(num_stages)]
    assert [layer for layers in split for layer in layers] == list(range(5)) and all(
        len(layers) for layers in split
    )
    assert sum(NETWORK.num_embeddings(stage, num_stages) for stage in range(num_stages)) == 4


def test_more_devices_than_layers_are_refused() -> None:
    with pytest.raises(SpecError, match="5 layers on 6 devices"):
        NETWORK.layers(0, 6)
