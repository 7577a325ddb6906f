"""Where a plan is trained: GPUs where it is for them and they are there, processes otherwise, and errors that say why not."""

from __future__ import annotations

import logging

import pytest

import meshwright as mw
from meshwright.api.trainings.place import place_of
from meshwright.executor.job import environment
from meshwright.executor.job.environment import TorchFacts
from meshwright.specs import ModelSpec
from meshwright.stage.piece import as_executed

MODEL = ModelSpec.decoder(4, 32, 4, vocabulary_size=64, max_sequence_length=16)
GPUS = mw.Plan.of(MODEL, mw.Cluster("2xH100"), mw.Workload(4, 16), tp=2, dtype="float32")
PROCESSES = mw.Plan.of(MODEL, mw.Cluster.detect(2), mw.Workload(4, 16), pp=2)


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What PyTorch says of this machine: so many devices of a name."""
    number, name, has_nccl = request.param
    facts = TorchFacts("2.13.0", True, has_nccl, "13.0", ((name, 80_000_000_000),) * number)
    monkeypatch.setattr(environment, "torch_facts", lambda: facts)


@pytest.mark.parametrize("sees", [(2, "NVIDIA H100 80GB HBM3", True)], indirect=True)
def test_a_plan_of_gpus_runs_on_those_that_are_there(sees: None, caplog: pytest.LogCaptureFixture) -> None:
    place = place_of(GPUS)
    assert place.device == "cuda" and place.subject.cluster == mw.Cluster("2xH100")
    assert place.subject.plan == as_executed(GPUS)  # priced as our software runs it
    names = {place.program.tables.effects[e].name for e in set(place.program.columns.effect.tolist())}
    assert "F" in names and place.program.columns.exchange.max() >= 0  # what tp sends is rows
    assert not caplog.records


@pytest.mark.parametrize("sees", [(2, "NVIDIA GeForce RTX 4090", True)], indirect=True)
def test_gpus_of_another_kind_are_told(sees: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert place_of(GPUS).device == "cuda"
    assert "the plan is for H100, this machine has NVIDIA GeForce RTX 4090" in caplog.text


@pytest.mark.parametrize(
    ("sees", "why"),
    [((1, "H100", True), "sees 1 here"), ((2, "H100", False), "no NCCL"), ((0, "", True), "sees 0 here")],
    indirect=["sees"],
)
def test_without_enough_gpus_it_is_processes_or_an_error(sees: None, why: str) -> None:
    place = place_of(GPUS)
    assert place.device == "cpu" and place.subject.cluster is not None
    assert place.subject.cluster.devices[0].name == "cpu"
    with pytest.raises(mw.ExecutionError, match=why):
        place_of(GPUS, device="cuda")


@pytest.mark.parametrize("sees", [(1, "H100", True)], indirect=True)
def test_a_rank_that_was_started_needs_its_own_gpu_only(sees: None) -> None:
    assert place_of(GPUS, num_local=1).device == "cuda"


@pytest.mark.parametrize("sees", [(8, "H100", True)], indirect=True)
def test_processes_are_asked_for_or_planned_for(sees: None) -> None:
    assert place_of(GPUS, device="cpu").device == "cpu"
    assert place_of(PROCESSES).device == "cpu"
    with pytest.raises(mw.SpecError, match="plan for the GPUs"):
        place_of(PROCESSES, device="cuda")


def test_another_device_is_refused() -> None:
    with pytest.raises(mw.SpecError, match="auto, cpu, cuda"):
        place_of(PROCESSES, device="tpu")  # type: ignore[arg-type]
