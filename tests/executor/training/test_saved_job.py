"""Checkpoints of jobs on gloo: saved in every layout, loaded in every other; resumed bitwise; failures told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.covering import always
from tests.executor.checkpoint.stored_case import stored
from tests.planned_case import AFTER_ADAMW, BATCH, MODELS, Planned
from tests.training_case import ADAMW, SEQUENCE, Case, largest_difference, program_of, reference, training_of
from torch import Tensor

from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.folder import latest_checkpoint, steps_in
from meshwright.executor.checkpoint.index import read_index
from meshwright.executor.checkpoint.verify import problems
from meshwright.executor.data.corpus import Corpus
from meshwright.executor.file.folder_lock import FolderLock
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.state.group_pieces import STEP_COUNT
from meshwright.executor.training.training_job import RANDOM
from meshwright.ir.vocabulary import Vocabulary
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.source import Source
from meshwright.stage.mesh import device_order

MODEL = "tied"
STEPS, MORE = 2, 2  # before and after the checkpoint
# Every one is saved in and loaded in: a new layout is one line.
LAYOUTS = {
    "pp2": Planned(MODEL, choices={"pp": 2, "schedule": "zb_h1"}),
    "dp2": Planned(MODEL, choices={"dp": 2}),
    "interleaved": Planned(MODEL, choices={"pp": 2, "schedule": "interleaved_1f1b"}),
    "tp2": Planned(MODEL, choices={"tp": 2, "sequence_parallel": True}),
    "dp2-zero1": Planned(MODEL, choices={"dp": 2, "sharding": "zero1"}),
    "pp2-dp2": Planned(MODEL, choices={"pp": 2, "dp": 2}),
    "pp2-dp2-zero3": Planned(MODEL, choices={"pp": 2, "dp": 2, "sharding": "zero3"}),
    "tp2-dp2-zero2": Planned(MODEL, choices={"tp": 2, "dp": 2, "sharding": "zero2"}),
    "pp2-offload": Planned(MODEL, choices={"pp": 2, "passes": ("offload_optimizer",)}),
    "dp2-zero1-offload": Planned(
        MODEL, choices={"dp": 2, "sharding": "zero1", "passes": ("offload_optimizer",)}
    ),
    "split-vocabulary": Planned(MODEL, choices={"pp": 2, "vocabulary": "two_barriers"}),
}
SMOKE = [
    ("pp2", "dp2-zero1"),
    ("dp2-zero1", "tp2-dp2-zero2"),
    ("tp2-dp2-zero2", "pp2-dp2-zero3"),
    ("pp2-dp2-zero3", "pp2-dp2-zero3"),
    ("interleaved", "tp2"),
    ("dp2-zero1-offload", "pp2-offload"),
]
ALL = [(source, target) for source in LAYOUTS for target in LAYOUTS if (source, target) not in SMOKE]


def run(
    case: Planned, pool: Pool, iterations: int, checkpoints: CheckpointConfig | None = None, **fields: Any
) -> JobResult:
    """A job of a layout with checkpoints."""
    job, plan = case.job(iterations, **fields)
    return pool.run(replace(job, checkpoints=checkpoints), places=device_order(plan))


@dataclass(frozen=True)
class Saved:
    """A training of `STEPS + MORE` steps in one go, with checkpoints after `STEPS` and at the end."""

    losses: list[float]
    middle: Path
    end: dict[str, Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, gloo_pool: Pool) -> dict[str, Saved]:
    """By layout, filled by `saved_in` when it is asked for."""
    return {}


def saved_in(name: str, saved: dict[str, Saved], pool: Pool, folder: Path) -> Saved:
    """The training in this layout, run once for all tests."""
    if name not in saved:
        config = CheckpointConfig(Checkpoints(str(folder / name), every=STEPS))
        result = run(LAYOUTS[name], pool, STEPS + MORE, config)
        end = stored(folder / name / f"step-{STEPS + MORE}")
        saved[name] = Saved(result.losses, folder / name / f"step-{STEPS}", end)
    return saved[name]


def resume(source: Saved, target: str, pool: Pool, folder: Path) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of the steps behind a checkpoint in another layout, and everything it holds at the end."""
    config = CheckpointConfig(Checkpoints(str(folder)), resume_from=str(source.middle))
    result = run(LAYOUTS[target], pool, MORE, config, first_step=STEPS)
    return result.losses, stored(folder / f"step-{STEPS + MORE}")


@pytest.mark.parametrize(("source", "target"), always([*SMOKE, *ALL], {1, 5}))
def test_saved_in_one_layout_loaded_in_another(
    source: str,
    target: str,
    saved: dict[str, Saved],
    gloo_pool: Pool,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    before = saved_in(source, saved, gloo_pool, tmp_path_factory.getbasetemp())
    assert problems(before.middle) == []
    losses, end = resume(before, target, gloo_pool, tmp_path)
    expected = reference(MODELS[MODEL], ADAMW, BATCH, STEPS + MORE)
    assert losses == pytest.approx(expected.losses[STEPS:], rel=AFTER_ADAMW)
    assert end.keys() == before.end.keys() and float(end[STEP_COUNT]) == STEPS + MORE
    assert largest_difference(end, before.end) < AFTER_ADAMW  # parameters and both moments
    if source == target:
        assert losses == before.losses[STEPS:]
        assert all(torch.equal(value, before.end[name]) for name, value in end.items())


@pytest.mark.parametrize(
    "case",
    always(
        [
            Planned("qwen", clip=0.1, dropout=0.2, choices={"pp": 2, "dtype": "float32", "schedule": "1f1b"}),
            Planned(
                "llama",
                clip=0.1,
                choices={"dp": 2, "dtype": "bfloat16", "master_dtype": "float32", "sharding": "zero1"},
            ),
            Planned(
                "gpt",
                choices={"tp": 2, "dp": 2, "dtype": "float32", "sharding": "zero3", "microbatch_size": 2},
            ),
        ],
        {0, 1},
    ),
    ids=str,
)
def test_resumed_twice_is_bitwise_uninterrupted(case: Planned, gloo_pool: Pool, tmp_path: Path) -> None:
    whole = run(case, gloo_pool, 6, CheckpointConfig(Checkpoints(str(tmp_path / "whole"))))
    losses, found = [], None
    for first in (0, 2, 4):
        config = CheckpointConfig(
            Checkpoints(str(tmp_path / "parts")), resume_from="" if found is None else str(found)
        )
        losses += run(case, gloo_pool, 2, config, first_step=first).losses
        found = latest_checkpoint(tmp_path / "parts")
    assert losses == whole.losses
    ours, theirs = stored(tmp_path / "parts/step-6"), stored(tmp_path / "whole/step-6")
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    info = read_index(tmp_path / "parts/step-6").info
    assert info == replace(read_index(tmp_path / "whole/step-6").info, training=info.training)
    assert (info.step, info.samples, info.tokens) == (6, 6 * BATCH, 6 * BATCH * SEQUENCE)
    assert info.loss == pytest.approx(whole.losses[-1], rel=1e-6)


def test_momentum_of_sgd_is_saved(gloo_pool: Pool, tmp_path: Path) -> None:
    optimizer = OptimizerConfig("sgd(momentum=0.9)", 0.1, weight_decay=0.0, clip_norm=None)
    case = Case("1f1b", 2, 4, optimizer=optimizer)

    def train(iterations: int, config: CheckpointConfig, first_step: int = 0) -> JobResult:
        from meshwright.executor import run_training

        training = training_of(case, first_step=first_step)
        return run_training(program_of(case), training, iterations, pool=gloo_pool, checkpoints=config)

    whole = train(4, CheckpointConfig(Checkpoints(str(tmp_path), every=2)))
    resumed = train(
        2, CheckpointConfig(Checkpoints(str(tmp_path / "b")), resume_from=str(tmp_path / "step-2")), 2
    )
    assert resumed.losses == whole.losses[2:]
    assert "momentum_buffer/head.weight" in read_index(tmp_path / "step-4").tensors


def test_every_so_many_steps_and_at_the_end(gloo_pool: Pool, tmp_path: Path) -> None:
    files = {"plan.toml": "# a plan\n"}
    run(
        LAYOUTS["pp2"],
        gloo_pool,
        7,
        CheckpointConfig(Checkpoints(str(tmp_path), every=2, keep=2), files=files),
    )
    assert steps_in(tmp_path) == [6, 7]
    assert (tmp_path / "step-7/plan.toml").read_text() == files["plan.toml"]
    assert len(list((tmp_path / "step-7").glob("tensors-*.safetensors"))) == 2  # each rank wrote its own


def test_evaluations_and_checkpoints_leave_the_training_as_it_is(gloo_pool: Pool, tmp_path: Path) -> None:
    alone = run(LAYOUTS["pp2"], gloo_pool, 4)
    config = CheckpointConfig(Checkpoints(str(tmp_path), every=2))
    both = run(LAYOUTS["pp2"], gloo_pool, 4, config, source=replace(RANDOM, evaluate_every=3))
    assert both.losses == alone.losses and both.trace is not None
    assert [iteration.held_out_loss is None for iteration in both.iterations] == [True, True, False, False]
    assert read_index(tmp_path / "step-4").info.loss == both.losses[-1]


def test_the_data_are_known_by_their_digest(gloo_pool: Pool, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcdefgh" * 400)
    model = ModelSpec.decoder(2, 16, 2, max_sequence_length=SEQUENCE)
    training = replace(training_of(Case("1f1b", 2, 4, model=model)), source=Source(str(text)))
    job = Job.of(program_of(Case("1f1b", 2, 4, model=model)), 1, training=training)
    gloo_pool.run(replace(job, checkpoints=CheckpointConfig(Checkpoints(str(tmp_path / "runs")))))
    assert read_index(tmp_path / "runs/step-1").info.data_digest == Corpus.folder(text).digest


def test_copies_are_written_by_one_rank_each(gloo_pool: Pool, tmp_path: Path) -> None:
    run(LAYOUTS["dp2"], gloo_pool, 1, CheckpointConfig(Checkpoints(str(tmp_path))))
    index = read_index(tmp_path / "step-1")
    sizes = [file.size_bytes for file in index.files.values()]
    numbers = sum(tensor.size_bytes for tensor in index.tensors.values())
    assert len(sizes) == 2 and max(sizes) < 0.6 * sum(sizes)
    assert sum(sizes) < 1.2 * numbers  # the rest are names in headers


def test_another_training_is_refused_before_it_begins(gloo_pool: Pool, tmp_path: Path) -> None:
    case = LAYOUTS["pp2"]
    run(case, gloo_pool, 1, CheckpointConfig(Checkpoints(str(tmp_path))))
    config = CheckpointConfig(Checkpoints(str(tmp_path)), resume_from=str(tmp_path / "step-1"))
    with pytest.raises(SpecError, match="has the step 1, the training 0"):
        run(case, gloo_pool, 1, config)
    with pytest.raises(SpecError, match="has the seed 0, the training 7"):
        run(case, gloo_pool, 1, config, first_step=1, seed=7)
    with pytest.raises(SpecError, match=r"embeddings True\), the training decoder \(has"):
        run(replace(case, model="llama"), gloo_pool, 1, config, first_step=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"checkpoints cannot be kept in .* is a file"):
        run(case, gloo_pool, 1, CheckpointConfig(Checkpoints(str(tmp_path / "file/runs"))))
    with pytest.raises(SpecError, match="is no checkpoint"):
        run(case, gloo_pool, 1, replace(config, resume_from=str(tmp_path)), first_step=1)


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.take()
    with pytest.raises(SpecError, match="a running training keeps its checkpoints in"):
        latest_checkpoint(tmp_path)
    lock.release()
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.slow
def test_a_rank_that_finds_a_folder_taken_says_so(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.take()
    told = pytest.raises(ExecutionError, match="a running training keeps its checkpoints in")
    with told, Pool(1) as pool:
        run(Planned(MODEL), pool, 1, CheckpointConfig(Checkpoints(str(tmp_path))))
    lock.release()


@pytest.mark.slow
def test_a_full_disk_of_one_rank_ends_the_job_and_leaves_the_one_before(
    gloo_pool: Pool, own_pool: Pool, tmp_path: Path
) -> None:
    case = LAYOUTS["pp2"]
    run(case, gloo_pool, 2, CheckpointConfig(Checkpoints(str(tmp_path))))
    job, plan = case.job(4, first_step=2)
    config = CheckpointConfig(Checkpoints(str(tmp_path), every=1), resume_from=str(tmp_path / "step-2"))
    module = Path(__file__).with_name("full_disk.py")
    with pytest.raises(
        ExecutionError, match=r"no space for a checkpoint .* it needs .* bytes\), .* are free"
    ):
        program = job.program.with_vocabulary(Vocabulary(owners=(str(module),)))
        own_pool.run(replace(job, checkpoints=config, program=program), places=device_order(plan))
    assert latest_checkpoint(tmp_path) == tmp_path / "step-2" and problems(tmp_path / "step-2") == []
    result = run(case, gloo_pool, 2, replace(config, kept=Checkpoints(str(tmp_path))), first_step=2)
    assert result.losses == pytest.approx(
        reference(MODELS[MODEL], ADAMW, BATCH, 4).losses[2:], rel=AFTER_ADAMW
    )
