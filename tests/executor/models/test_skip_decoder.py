"""A decoder with long skips cut into stages: any cut holds the same parameters and gives the same output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.executor.models.skip_decoder import build_skip_stage
from meshwright.lowering.transfer.stage_edge import parse_edges
from meshwright.specs.model.model import ModelSpec

MODEL = ModelSpec.decoder(6, 16, 2, num_kv_heads=1, vocabulary_size=32, max_sequence_length=8)
EDGES = parse_edges("0>5 1>4 2>3 0>4")


def logits(cuts: tuple[int, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    """Output of stages of these counts of layers, and all their parameters."""
    x, outputs, parameters, first = torch.arange(16).view(2, 8) % 32, {}, {}, 0
    for number, count in enumerate(cuts):
        ends = (number == 0, number == len(cuts) - 1)
        stage = build_skip_stage(MODEL, range(first, first + count), *ends, EDGES, torch.float64)
        x, given = stage.with_edges(x, None, [outputs[layer] for layer in stage.received])
        outputs.update(zip(stage.given, given, strict=True))
        parameters.update(stage.global_parameters())
        first += count
    return x.detach(), {name: p.detach() for name, p in parameters.items()}


@pytest.mark.parametrize("cuts", [(3, 3), (1, 1, 2, 2), (2, 0, 4)], ids=str)
def test_a_cut_makes_no_difference(cuts: tuple[int, ...]) -> None:
    (whole, ours), (cut, theirs) = logits((6,)), logits(cuts)
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-14)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert ours["joins.4.weight"].shape == (16, 48)  # its input and two outputs


def test_a_stage_takes_exactly_what_its_layers_read() -> None:
    stage = build_skip_stage(MODEL, range(3, 6), False, True, EDGES, torch.float64)
    assert stage.received == (0, 1, 2) and stage.given == ()
    with pytest.raises(ValueError, match="shorter"):
        stage.with_edges(torch.zeros(1, 8, 16, dtype=torch.float64), None, ())
