"""Routers that steps correct choose, in every layout, as those of one process; corrections are equal to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder, PlainMixture
from tests.covering import always
from tests.planned_case import AFTER_ADAMW, BATCH, MODELS, RATE, Planned
from tests.training_case import ADAMW, SEQUENCE, largest_difference, torch_optimizer
from torch import Tensor, nn

from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.export import whole_parameters
from meshwright.executor.checkpoint.index import read_index
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.training.training_job import RandomTokens
from meshwright.specs.error import ExecutionError
from meshwright.specs.training.checkpoints import Checkpoints

ITERATIONS = 3


def planned(model: str = "deepseek", clip: float = 0.0, **choices: object) -> Planned:
    return Planned(model, clip, choices={"passes": ("correct_routers",), **choices})


def _count(mixture: PlainMixture, logits_BSX: Tensor, counts: list[int]) -> None:
    """Tokens of every expert, one by one."""
    chosen = mixture._open(logits_BSX.detach().sigmoid() + mixture.correction)
    for expert in chosen.topk(mixture.experts.num_experts_per_token, -1).indices.flatten().tolist():
        counts[expert] += 1


@lru_cache
def one_process(
    name: str, clip: float, rate: float, iterations: int = ITERATIONS
) -> tuple[list[float], list[dict[str, Tensor]], dict[str, Tensor]]:
    """Losses, gradients, and what is trained in the end, with corrections; by plain torch."""
    model = MODELS[name]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        plain = PlainDecoder(model)
    finally:
        torch.set_default_dtype(before)
    plain.load_state_dict(build_model(model, torch.float64).state_dict())
    mixtures = {n: m for n, m in plain.named_modules() if isinstance(m, PlainMixture)}
    counts = {n: [0] * m.experts.num_experts for n, m in mixtures.items()}
    for n, mixture in mixtures.items():

        def note(module: nn.Module, x: object, logits: Tensor, n: str = n) -> None:
            _count(mixtures[n], logits, counts[n])

        mixture.router.register_forward_hook(note)
    chosen, losses, gradients = torch_optimizer(plain, ADAMW), [], []
    for step in range(iterations):
        tokens_BS, targets_BS = RandomTokens(model.vocabulary_size).batch(0, step, range(BATCH), SEQUENCE)
        chosen.zero_grad()
        loss = F.cross_entropy(plain(tokens_BS).flatten(0, 1), targets_BS.flatten())
        loss.backward()
        losses.append(loss.item())
        gradients.append({n: p.grad.clone() for n, p in plain.named_parameters() if p.grad is not None})
        if clip:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        chosen.step()
        for n, mixture in mixtures.items():
            mean = sum(counts[n]) / len(counts[n])
            for expert, count in enumerate(counts[n]):
                mixture.correction[expert] += rate * ((count < mean) - (count > mean))
            counts[n][:] = [0] * len(counts[n])
    kept = {**dict(plain.named_parameters()), **(dict(plain.named_buffers()) if rate else {})}
    return losses, gradients, {n: p.detach().clone() for n, p in kept.items() if "rotation" not in n}


def assert_corrected(case: Planned, result: JobResult) -> None:
    losses, gradients, trained = one_process(case.model, case.clip, RATE)
    assert result.losses == pytest.approx(losses, rel=AFTER_ADAMW)
    for ours, theirs in zip(result.gradients, gradients, strict=True):
        assert largest_difference(ours, theirs) < AFTER_ADAMW
    corrections = {name for name in trained if name.endswith(".correction")}
    assert len(corrections) == 3
    for name in corrections:
        assert torch.equal(result.parameters[name], trained[name]), name
        assert float(result.parameters[name].abs().max()) >= RATE
    rest = {name: value for name, value in result.parameters.items() if name in trained}
    assert largest_difference(rest, {name: trained[name] for name in rest}) < AFTER_ADAMW
    assert set(rest) == set(result.parameters)


CASES = [
    planned(),
    planned(clip=0.1, pp=2, dp=2, ep=2, schedule="1f1b"),
    planned("folded deepseek", 0.1, tp=2, dp=2, etp=1, ep=2, sharding="zero3"),
    planned(dp=2, ep=2, split_backward=True, recompute="full"),
    planned(dp=2, sharding="zero2", passes=("correct_routers", "offload_optimizer")),
    planned("folded deepseek", tp=2, etp=2, ep=1, sequence_parallel=True),
    planned("folded deepseek", 0.1, pp=2, schedule="dualpipe", passes=("correct_routers", "post_validation")),
    planned("folded deepseek", cp=2, etp=1, ep=2),
    planned("folded deepseek", tp=2, ep=1, etp=2),  # both devices count all tokens
    planned("folded deepseek", tp=2, dp=2, recompute="selective_op"),
    planned("folded deepseek", dp=4, etp=2, ep=2, microbatch_size=2, token_parts=2),
    planned(dp=2, passes=("correct_routers", "canonical_reduction")),
]


@pytest.mark.parametrize("case", always(CASES, {1, 5}), ids=str)
def test_corrections_equal_those_of_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_corrected(case, case.run(gloo_pool, ITERATIONS))


def test_corrections_change_what_is_learned() -> None:
    """Else the test above could not fail for a correction that nobody reads."""
    corrected, constant = one_process("deepseek", 0.0, RATE), one_process("deepseek", 0.0, 0.0)
    assert corrected[0][0] == constant[0][0]
    assert abs(corrected[0][2] - constant[0][2]) > 1e-6


def exported(checkpoint: Path) -> Mapping[str, Tensor]:
    """What leaves for other programs."""
    return whole_parameters(checkpoint, read_index(checkpoint))[1]


def test_a_checkpoint_has_them_in_every_layout(gloo_pool: Pool, tmp_path: Path) -> None:
    """Two steps on one layout, one on another: as three of one process. They leave with the weights."""
    first, second = planned(dp=2, ep=2), planned(pp=2, schedule="1f1b")
    kept = CheckpointConfig(Checkpoints(str(tmp_path / "runs"), every=2))
    job, _ = first.job(2)
    gloo_pool.run(replace(job, checkpoints=kept))
    resumed = CheckpointConfig(Checkpoints(str(tmp_path / "on"), every=1), str(tmp_path / "runs" / "step-2"))
    job, _ = second.job(1, first_step=2)
    result = gloo_pool.run(replace(job, checkpoints=resumed))
    losses, _, trained = one_process("deepseek", 0.0, RATE)
    assert result.losses == pytest.approx(losses[2:], rel=AFTER_ADAMW)
    written = exported(tmp_path / "on" / "step-3")
    for name in (name for name in trained if name.endswith(".correction")):
        assert torch.equal(result.parameters[name], trained[name])
        assert torch.equal(written[name], trained[name])


def test_a_rate_may_begin_and_end_on_the_way(gloo_pool: Pool, tmp_path: Path) -> None:
    """Constants up to step 1, corrected in step 2, kept as they are in step 3, and still in its checkpoint."""
    found = []
    for step, passes in enumerate([(), ("correct_routers",), ()]):
        case, before = planned(dp=2, passes=passes), tmp_path / f"run{step - 1}" / f"step-{step}"
        kept = CheckpointConfig(
            Checkpoints(str(tmp_path / f"run{step}"), every=1), str(before) if step else ""
        )
        job, _ = case.job(1, first_step=step)
        gloo_pool.run(replace(job, checkpoints=kept))
        weights = exported(tmp_path / f"run{step}" / f"step-{step + 1}")
        found.append(weights["layers.1.mixture.correction"])
    assert not found[0].any()
    assert set(found[1].abs().tolist()) <= {0.0, RATE} and found[1].any()
    assert torch.equal(found[1], found[2])


def test_a_program_that_counts_nothing_is_refused() -> None:
    with pytest.raises(ExecutionError, match="does not count"):
        planned(passes=()).job(1, correction_rate=RATE)
