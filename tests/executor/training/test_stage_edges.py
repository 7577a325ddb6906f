"""Edges beside the path on gloo in float64: a U-shaped decoder equals one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.covering import always
from tests.executor.training.edge_case import edged_program, edged_reference
from tests.training_case import ADAMW, SGD, largest_difference

from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.judge.verify import verify
from meshwright.lowering.transfer.stage_edge import parse_edges
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import ExecutionError, PlanError
from meshwright.specs.model.layers import split_layers
from meshwright.specs.model.model import ModelSpec

ITERATIONS = 2
TOLERANCE = 1e-10  # DESIGN, tolerances: float64
SEQUENCE = 8
MODEL = ModelSpec.decoder(8, 16, 2, num_kv_heads=1, vocabulary_size=32, max_sequence_length=SEQUENCE)
U_SHAPE = "0>7 1>6 2>5 3>4"
SEVERAL = (
    "0>6 0>3 2>6 5>6 1>2"  # one output to two stages, three outputs to one block, one edge within a stage
)


def training_of(num_stages: int, **fields: object) -> TrainingConfig:
    """A job of eight layers whose gradients come back."""
    model = fields.pop("model", MODEL)
    layers = split_layers(8, num_stages)
    return TrainingConfig(model, layers, SEQUENCE, SGD, source=RANDOM, records_gradients=True, **fields)  # type: ignore[arg-type]


def check(training: TrainingConfig, pool: Pool, *layout: object, **options: object) -> None:
    """Loss, norm, every gradient and the parameters are those of one process."""
    program = edged_program(training, *layout, **options)  # type: ignore[arg-type]
    for host in HOSTS:
        verify(program, host)
    result = run_training(program, training, ITERATIONS, pool=pool, dtype="float64")
    num_samples = len(program.tables.microbatches) * program.axis("dp").size
    expected = edged_reference(training, num_samples, ITERATIONS)
    assert result.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    assert [it.gradient_norm for it in result.iterations] == pytest.approx(expected.norms, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < TOLERANCE
    assert largest_difference(result.parameters, expected.parameters) < TOLERANCE


@pytest.mark.parametrize("edges", always([U_SHAPE, SEVERAL], {1}))
@pytest.mark.parametrize(
    "layout",
    [
        ("1f1b", 4, 6, "plain"),
        ("1f1b", 4, 6, "split recompute"),
        ("gpipe", 2, 3, "recompute", 2),
        ("zb_h1", 4, 6),
        ("interleaved_1f1b", 2, 4),
        ("dualpipe", 4, 6),  # the edges of a stage start on two devices
        ("1f1b", 1, 2),
    ],
    ids=str,
)
def test_long_skips(gloo_pool: Pool, edges: str, layout: tuple[object, ...]) -> None:
    num_stages = {"interleaved_1f1b": 4}.get(str(layout[0]), layout[1])
    training = training_of(int(str(num_stages)), layer_edges=parse_edges(edges))
    check(training, gloo_pool, *layout)


def test_a_program_without_its_edges_is_refused() -> None:
    training = training_of(4, layer_edges=parse_edges(U_SHAPE))
    program = edged_program(training_of(4), "1f1b", 4, 4)
    with pytest.raises(ExecutionError, match="ConnectStages"):
        run_training(program, training, 1)
    with pytest.raises(PlanError, match="an earlier layer"):
        training_of(4, layer_edges=parse_edges("5>3")).stage_edges()
    with pytest.raises(ExecutionError, match="no long skips"):
        training_of(4, model=MODEL.changed(num_encoder_layers=4), layer_edges=parse_edges("0>3"))
    replaced = replace(training, optimizer=ADAMW)
    assert TrainingConfig.from_dict(replaced.to_dict()) == replaced
