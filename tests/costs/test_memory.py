"""Tests of costs/memory.py: what stays, what a microbatch adds, what recompute saves."""

from meshwright.costs.memory import stage_memory
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec

MODEL = ModelSpec.decoder(4, 64, 4, vocabulary_size=256)
MIDDLE = StageLayers(1, 2, False, False)


def test_adamw_keeps_four_arrays_of_parameters():
    memory = stage_memory(MODEL, StageLayers(0, 4, True, True), 128)
    assert memory.parameter_bytes == 4 * MODEL.num_parameters
    assert memory.fixed_bytes == 16 * MODEL.num_parameters


def test_saved_bytes_scale_with_tokens_and_microbatches():
    one, two = (stage_memory(MODEL, MIDDLE, tokens) for tokens in (128, 256))
    assert two.saved_bytes == 2 * one.saved_bytes
    assert one.peak_bytes(3) - one.peak_bytes(1) == 2 * one.saved_bytes
    assert one.peak_bytes(1, 1) - one.peak_bytes(1) == one.pending_bytes


def test_recompute_keeps_the_input_only():
    plain = stage_memory(MODEL, MIDDLE, 128)
    thin = stage_memory(MODEL, MIDDLE, 128, recompute="full")
    assert thin.saved_bytes == thin.boundary_bytes == 128 * 64 * 4
    assert thin.recomputed_bytes == plain.saved_bytes
    assert thin.peak_bytes(4) < plain.peak_bytes(4)
