"""Programs whose stages are chains of segments: small models, degrees by name."""

from __future__ import annotations

from typing import Any

from tests.lowering.plans import plan

import meshwright.api  # noqa: F401  # how many chunks a schedule has is asked above specs
from meshwright.ir.program import Program
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs import ModelSpec

ONE_LAYER = ModelSpec.decoder(1, 64, 8, num_kv_heads=4, vocabulary_size=96, intermediate_size=96)
TWO_LAYERS = ModelSpec.decoder(2, 64, 8, num_kv_heads=4, vocabulary_size=96, intermediate_size=96)
FOUR_LAYERS = ModelSpec.decoder(4, 64, 8, num_kv_heads=4, vocabulary_size=96, intermediate_size=96)
HALVES = TWO_LAYERS.changed(num_encoder_layers=1)  # an encoder of one block, and one of its decoder
TP = {"tp": 2}
SEQUENCE_PARALLEL = {"tp": 2, "sequence_parallel": True}


def segment_program(model: ModelSpec = ONE_LAYER, **choices: Any) -> Program:
    """One microbatch unless told."""
    chosen = plan(model, **{"batch": choices.get("dp", 1), **choices})
    return lower(chosen, registered()[chosen.schedule], in_segments=True)
