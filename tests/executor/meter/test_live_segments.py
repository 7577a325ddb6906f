"""What a stage keeps between F and B once it is cut into segments: no more than uncut, and less where less is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.executor.meter.live_between import live_between
from tests.training_case import ADAMW

from meshwright.executor.handlers.saved_forward import SavedForward
from meshwright.executor.job.job import Job
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import GATHERED, Plan
from meshwright.specs.plan.software import EXECUTOR
from meshwright.specs.plan.workload import Workload
from meshwright.stage.chain.chain import Chain
from meshwright.stage.saved.block import block_saved
from meshwright.stage.saved.size import kept_bytes_per_token

LAYERS, HIDDEN, HEADS, SAMPLES, LENGTH = 4, 128, 4, 4, 128
MODEL = ModelSpec.decoder(
    LAYERS, HIDDEN, HEADS, num_kv_heads=2, vocabulary_size=64, max_sequence_length=LENGTH
)
STREAM_BYTES = SAMPLES * LENGTH * HIDDEN * 4  # of the residual stream in float32
LARGEST_EXCESS = 1.01
EXPERTS = MODEL.changed(
    architecture="mixtral", num_experts=4, num_experts_per_token=2, expert_intermediate_size=192
)
# Places and counts of rows are kept, too, whole on every device, and not counted: the more devices, the larger their share.
INDEX_SHARE = 0.05


def planned(model: ModelSpec, dtype: str = "float32", **choices: Any) -> Plan:
    """One stage with all layers, one microbatch."""
    cluster = Cluster(f"{choices.get('tp', 1)}xcpu")
    return Plan.of(model, cluster, Workload(SAMPLES, LENGTH), dtype=dtype, microbatch_size=SAMPLES, **choices)


def live(folder: Path, dtype: str = "float32", model: ModelSpec = MODEL, **choices: Any) -> int:
    """Bytes between F and B of one stage with all layers, on one device."""
    plan = planned(model, dtype, **choices)
    layout = TensorLayout.of(plan)
    training = TrainingConfig(model, (LAYERS,), LENGTH, ADAMW, source=RANDOM, layout=layout)
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    folder.mkdir(exist_ok=True)
    return live_between(Job.of(program, 1, training=training, dtype=dtype), folder)


def keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains are cut where something is recomputed, and nothing is."""
    monkeypatch.setattr(Chain, "recomputing", lambda chain, steps: chain)


def begin_with_leaves(saved: SavedForward, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A graph that begins with leaves, whose accumulators hold them."""
    if not torch.is_grad_enabled():
        return inputs
    leaves = tuple(x.detach().requires_grad_() for x in inputs)
    found: list[torch.Tensor | None] = [None] * len(leaves)
    for place, leaf in enumerate(leaves):
        leaf.register_hook(lambda gradient, place=place: found.__setitem__(place, gradient))
    saved.taken = found  # type: ignore[assignment]
    return leaves


def test_a_stage_that_is_cut_keeps_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uncut = live(tmp_path)
    assert uncut > 10 * LAYERS * STREAM_BYTES  # it is what layers keep that is measured
    keep_all(monkeypatch)
    cut = live(tmp_path, recompute="selective")
    monkeypatch.setattr(SavedForward, "begin", begin_with_leaves)
    with_leaves = live(tmp_path, recompute="selective")
    assert cut <= LARGEST_EXCESS * uncut < with_leaves


def test_a_recomputed_core_keeps_its_inputs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own attention keeps nothing but queries, keys and values by heads, which are as many as what it reads; torch's
    kernel keeps the logarithms of its sums, too, and these are saved."""
    again = {dtype: live(tmp_path, dtype, recompute="selective") for dtype in ("float32", "bfloat16")}
    keep_all(monkeypatch)
    kept = {dtype: live(tmp_path, dtype, recompute="selective") for dtype in again}
    saved = {dtype: kept[dtype] - again[dtype] for dtype in again}
    assert saved["float32"] == pytest.approx(0, abs=0.001 * kept["float32"])
    assert saved["bfloat16"] == pytest.approx(LAYERS * SAMPLES * LENGTH * HEADS * 4, rel=0.01)


def test_what_is_fetched_again_is_not_kept(tmp_path: Path) -> None:
    """Of every product that reads a gathered input its own part is kept, two a layer; the head's has been fetched again
    when the first backward begins."""
    again, kept = (live(tmp_path, tp=2, sequence_parallel=True, gathered=each) for each in GATHERED)
    assert kept - again == pytest.approx(2 * LAYERS * STREAM_BYTES / 2, rel=0.01)


def test_by_operation_nothing_is_kept_that_runs_again(tmp_path: Path) -> None:
    """Of every layer both norms' statistics and outputs, and of the MLP all but its first product."""
    remade = (
        "norm statistics",
        "first norm's output",
        "second norm's output",
        "activation output",
        "SiLU of gate",
    )
    live(tmp_path)  # the first one makes tables that live on
    kept, again = live(tmp_path), live(tmp_path, recompute="selective_op")
    each = sum(tensor.bytes_per_token for tensor in block_saved(MODEL) if tensor.name in remade)
    assert kept - again == pytest.approx(LAYERS * SAMPLES * LENGTH * each, rel=0.001)


@pytest.mark.parametrize(
    "choices",
    [
        {"tp": 2},
        {"tp": 2, "etp": 1},
        {"tp": 2, "etp": 1, "sequence_parallel": True},
        {"tp": 4, "etp": 1, "sequence_parallel": True},
    ],
    ids=str,
)
def test_experts_keep_what_is_counted_whoever_shares_them(tmp_path: Path, choices: dict[str, Any]) -> None:
    """Whole experts get the rows of a device's own part of the tokens; divided ones those of all of them."""
    model = EXPERTS if choices["tp"] == 2 else EXPERTS.changed(num_kv_heads=4)
    plan = planned(model, software=EXECUTOR.name, **choices)
    live(tmp_path, model=model, **choices)  # the first one makes tables that live on
    measured = live(tmp_path, model=model, **choices)
    counted = SAMPLES * LENGTH * kept_bytes_per_token(plan, plan.stages()[0])
    assert measured == pytest.approx(counted, rel=INDEX_SHARE)
