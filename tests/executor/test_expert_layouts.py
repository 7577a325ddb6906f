"""A model whose experts are divided among devices is the model of one process, in every layout, whoever gets the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.part.mixture import MixtureOfExperts
from meshwright.executor.training.rank_training import TrainingState
from meshwright.executor.training.training_job import RandomTokens
from meshwright.specs.error import MeshwrightError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.stage.group.value_size import num_local_parameters
from meshwright.stage.mesh import device_order
from tests import planned_case
from tests.covering import always, covering, product, slow_cases
from tests.executor.checkpoint.stored_case import stored
from tests.planned_case import (
    AFTER_ADAMW,
    BATCH,
    MODELS,
    Planned,
    assert_equal_to_one_process,
    legal,
)
from tests.training_case import ADAMW, SEQUENCE, largest_difference, reference

ITERATIONS = 2
NUMBER_BYTES = 8  # of float64, and of a count


def planned(model: str = "mixtral of 4", clip: float = 0.0, **choices: Any) -> Planned:
    """A layout by its choices."""
    return Planned(model, clip, choices=choices)


SMOKE = [
    planned(dp=2, ep=2),
    planned(dp=2, ep=2, split_backward=True, recompute="full", optimizer="sgd"),
    planned("qwen moe", clip=0.1, dp=2, ep=2, sharding="zero3"),
    planned("qwen moe", tp=2, ep=2, sequence_parallel=True, split_backward=True),
    planned("qwen moe of 4", clip=0.1, dp=2, tp=2, ep=4, sequence_parallel=True),
    planned("deepseek", clip=0.1, pp=2, dp=2, ep=2, schedule="zb_h1"),
    planned("qwen moe", cp=2, ep=2, context="ulysses"),
    planned("qwen moe", dp=2, ep=2, recompute="selective"),
]


MORE = [
    planned("qwen moe", clip=0.1, tp=2, ep=2),
    planned(clip=0.1, dp=4, ep=2, sharding="zero3", split_backward=True),
    planned("qwen moe", clip=0.1, dp=2, tp=2, ep=2, sequence_parallel=True, sharding="zero2"),
    planned("qwen moe", clip=0.1, dp=2, tp=2, ep=2, etp=1, sequence_parallel=True, sharding="zero1"),
    planned(dp=2, tp=2, ep=2, etp=1),
    planned(clip=0.1, dp=2, cp=2, ep=4, sharding="zero2"),
    planned(tp=2, ep=2, sequence_parallel=True),
    planned("qwen moe of 4", dp=4, ep=4, sharding="zero1"),
    planned(pp=2, tp=2, ep=2, sequence_parallel=True, recompute="full"),
    planned("qwen moe", cp=2, tp=2, ep=2, context="all_gather", sequence_parallel=True),
    planned(cp=2, tp=2, ep=4, context="ulysses"),
]


@pytest.mark.parametrize("case", always([*SMOKE, *MORE], {2, 4, 5, 6}), ids=str)
def test_divided_experts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


def covering_layouts() -> list[Planned]:
    """Layouts on two and four processes that have every pair of choices which is legal."""
    factors = {
        "degrees": ((1, 2, 1, 2), (1, 1, 2, 2), (1, 4, 1, 2), (1, 4, 1, 4), (2, 2, 1, 2), (2, 1, 2, 2),
                    (1, 2, 2, 2), (1, 2, 2, 4)),
        "schedule": ("1f1b", "interleaved_1f1b", "zbv"),
        "sequence_parallel": (False, True),
        "sharding": ("none", "zero1", "zero2", "zero3"),
        "sharding_degree": (0, 2),
        "split_backward": (False, True),
        "recompute": ("none", "full"),
        "clip": (0.0, 0.1),
        "model": ("mixtral of 4", "qwen moe of 4", "deepseek"),
    }  # fmt: skip
    rows = []
    for row in product(factors):
        pp, dp, tp, ep = row["degrees"]
        is_needless = (
            (tp == 1 and row["sequence_parallel"])
            or (dp == 1 and row["sharding"] != "none")
            or (row["sharding_degree"] and (row["sharding"] == "none" or dp < 4))
            or (pp == 1 and row["schedule"] != "1f1b")
            or (ep == 4 and row["model"] == "deepseek")  # of six experts
        )
        if not is_needless:
            rows.append(row)
    return legal(_of_experts(rows[i]) for i in covering(rows))


def _of_experts(row: dict[str, Any]) -> Planned:
    pp, dp, tp, ep = row["degrees"]
    choices = {k: v for k, v in row.items() if k not in ("degrees", "clip", "model")}
    return planned(row["model"], row["clip"], pp=pp, dp=dp, tp=tp, ep=ep, **choices)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(covering_layouts), ids=str)
def test_a_covering_set_of_layouts_equals_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


# Of two kinds of tokens, each of which goes to one expert: in some block all take the same, and the others have none.
# Gates do not have the sum one, so the router has a gradient.
ONE_SIDED = MODELS["qwen moe of 4"].changed(hidden_size=24, vocabulary_size=2, num_experts_per_token=1)


@contextmanager
def counted(found: list[Tensor]) -> Iterator[None]:
    """Rows of every expert, of every block in turn, while a model runs in this process."""
    before = MixtureOfExperts.dispatched

    def dispatched(
        self: MixtureOfExperts, hidden_TE: Tensor, num_copies: float = 1
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        made = before(self, hidden_TE, num_copies)
        found.append(made[-1])
        return made

    MixtureOfExperts.dispatched = dispatched  # type: ignore[method-assign]
    try:
        yield
    finally:
        MixtureOfExperts.dispatched = before  # type: ignore[method-assign]


def rows_of_samples(model: ModelSpec) -> Tensor:
    """Rows of every expert, of every sample of the first step and every block: [samples, blocks, experts]."""
    stage, found = build_model(model, torch.float64), list[Tensor]()
    with counted(found), torch.no_grad():
        for sample in range(BATCH):
            stage(RandomTokens(model.vocabulary_size).batch(0, 0, range(sample, sample + 1), SEQUENCE)[0])
    return torch.stack(found).view(BATCH, len(found) // BATCH, -1)


def test_experts_without_a_token_and_with_all_of_them(
    gloo_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(planned_case.MODELS, "one-sided", ONE_SIDED)  # type: ignore[arg-type]
    rows = rows_of_samples(ONE_SIDED)
    assert (rows.sum(0) == 0).any(), "an expert has none of the whole step"
    assert (rows.sum(0) == BATCH * SEQUENCE).any(), "an expert has all of them"
    for case in (planned("one-sided", dp=2, ep=2), planned("one-sided", dp=4, ep=4, sharding="zero3")):
        assert_equal_to_one_process(case, case.run(gloo_pool, 1), 1)


def test_as_many_bytes_are_sent_as_rows_are_counted(gloo_pool: Pool) -> None:
    """To the experts and back, and the same of gradients; counts once."""
    model, degree = MODELS["mixtral of 4"], 2
    rows = rows_of_samples(model)
    of_device = rows.view(degree, BATCH // degree, model.num_layers, degree, -1).sum((1, 2, 4))
    result = planned(dp=degree, ep=degree).run(gloo_pool, 1)
    num_counts = BATCH // degree * model.num_layers * (rows.shape[-1] // degree)
    for rank, sent in enumerate(result.sent_bytes):
        other = 1 - rank
        crossing = int(of_device[rank, other] + of_device[other, rank])
        assert sent["ROUTE"] == 2 * crossing * model.hidden_size * NUMBER_BYTES
        assert sent["COUNTS"] == num_counts * NUMBER_BYTES


@pytest.mark.parametrize(
    "choices",
    [
        {"dp": 2, "ep": 2},
        {"tp": 2, "ep": 2},
        {"dp": 2, "tp": 2, "ep": 2},
        {"dp": 2, "tp": 2, "ep": 4, "sequence_parallel": True},
        {"pp": 2, "dp": 2, "ep": 2},
    ],
    ids=str,
)
def test_a_rank_holds_its_share_of_the_parameters(choices: dict[str, Any]) -> None:
    job, plan = planned("qwen moe of 4", **choices).job(1)
    assert job.training is not None
    for rank in range(plan.num_devices):
        state = TrainingState(job.training, job.program, rank, torch.float64, torch.device("cpu"))
        expected = sum(sum(num_local_parameters(plan, plan.stages()[stage])) for stage in state.stages)
        assert sum(tensor.numel() for tensor in state.tensors()) == expected


@pytest.mark.parametrize(
    ("source", "target"),
    always(
        [
            (planned(dp=2, ep=2, sharding="zero1"), planned(dp=2, tp=2, ep=4, sequence_parallel=True)),
            (planned(tp=2, ep=2), planned(dp=4, ep=2, sharding="zero3")),
            (planned(dp=2, ep=2), planned(dp=2)),
        ],
        {1},
    ),
    ids=str,
)
def test_saved_in_one_layout_loaded_in_another(
    source: Planned, target: Planned, gloo_pool: Pool, tmp_path: Path
) -> None:
    steps, folders = 2, (tmp_path / "before", tmp_path / "after")
    first = CheckpointConfig(Checkpoints(str(folders[0]), every=steps))
    second = CheckpointConfig(Checkpoints(str(folders[1])), resume_from=str(folders[0] / f"step-{steps}"))
    losses = []
    for case, config, begin in ((source, first, 0), (target, second, steps)):
        job, plan = case.job(steps, first_step=begin)
        losses += gloo_pool.run(replace(job, checkpoints=config), places=device_order(plan)).losses
    expected = reference(MODELS["mixtral of 4"], ADAMW, BATCH, 2 * steps)
    assert losses == pytest.approx(expected.losses, rel=AFTER_ADAMW)
    end = stored(folders[1] / f"step-{2 * steps}")
    assert largest_difference({n: end[n] for n in expected.parameters}, expected.parameters) < AFTER_ADAMW


def test_gradients_of_several_devices_tokens_have_no_canonical_order() -> None:
    with pytest.raises(
        MeshwrightError, match="canonical_reduction keeps gradients of every microbatch apart"
    ):
        planned(dp=2, ep=2, passes=("canonical_reduction",)).job(1)
