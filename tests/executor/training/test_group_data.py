"""What a rank's microbatches have of packed sequences: tokens and targets, where documents begin, what a loss weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from tests.grouped_case import IDLE, MIXED, grouped_job, grouped_plan
from torch import Tensor

from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET
from meshwright.executor.training.group_data import GroupData, RandomSequences, StepSequences
from meshwright.executor.training.training_job import RandomTokens, TrainingConfig
from meshwright.specs.error import ExecutionError
from meshwright.specs.sequence.sequence_group import GroupedBatch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Counted:
    """Sequence n of a step has the tokens 100 n, 100 n + 1, ... and no target behind its second one."""

    surplus: int = 0

    def sequence(self, seed: int, step: int, number: int, length: int) -> tuple[Tensor, Tensor]:
        tokens_L = 100 * number + torch.arange(length + self.surplus)
        targets_L = tokens_L + 1
        targets_L[1:2] = IGNORED_TARGET
        return tokens_L, targets_L

    def num_targets(self, seed: int, step: int, lengths: Sequence[int]) -> int:
        return sum(length - (length > 1) for length in lengths)


def data_of(groups: GroupedBatch, source: StepSequences | None = None) -> GroupData:
    job = grouped_job(grouped_plan(), groups, 1)
    assert job.training is not None
    return GroupData(job.training, job.program, groups, source)


def test_ranks_of_a_group_have_its_sequences_once_and_padding_has_no_target() -> None:
    data = data_of(MIXED, Counted())
    tokens, targets = zip(*(data.tokens(number, CPU) for number in (0, 1)), strict=True)
    # the first sequence, of 9 tokens, is padded to 12 on two ranks: runs of 3
    assert tokens[0].tolist() == [[0, 1, 2, 0, 0, 0]] and tokens[1].tolist() == [[3, 4, 5, 6, 7, 8]]
    assert targets[0].tolist() == [[1, IGNORED_TARGET, 3, *[IGNORED_TARGET] * 3]]
    assert targets[1].tolist() == [[4, 5, 6, 7, 8, 9]]
    assert data.documents(0, CPU).tolist() == [[0] * 9 + [9, 10, 11]]
    alone, _ = data.tokens(2, CPU)
    assert alone.tolist() == [[100, 101, 102, 103, 300, 301, 302]]
    assert data.documents(2, CPU).tolist() == [[0, 0, 0, 0, 4, 4, 4]]
    assert data.is_packed(2)


def test_all_tokens_with_a_target_weigh_the_same_over_all_ranks() -> None:
    data = data_of(MIXED, Counted())
    num_targets = sum(int((data.tokens(n, CPU)[1] != IGNORED_TARGET).sum()) for n in range(4))
    assert {data.token_weight(n) for n in range(4)} == {1 / num_targets}


def test_a_rank_in_no_group_has_a_token_without_a_target() -> None:
    data = data_of(IDLE)
    tokens, targets = data.tokens(len(IDLE.microbatches) - 1, CPU)
    assert tokens.shape == (1, 1) and targets.tolist() == [[IGNORED_TARGET]]


def test_documents_within_sequences_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingConfig, "has_documents", property(lambda _: True))
    data = data_of(MIXED, Counted())
    assert data.documents(2, CPU).tolist() == [[0, 0, 2, 2, 4, 4, 6]]
    assert not data.is_packed(2)


def test_sequences_of_another_length_than_the_groups_are_refused() -> None:
    with pytest.raises(ExecutionError, match="allowed: 9 of each"):
        data_of(MIXED, Counted(surplus=1)).tokens(0, CPU)


def test_drawn_sequences_are_those_of_a_training_of_one() -> None:
    drawn = RandomTokens(34)
    tokens, targets = RandomSequences(drawn).sequence(3, 2, 7, 5)
    expected = drawn.batch(3, 2, (7,), 5)
    assert torch.equal(tokens[None], expected[0]) and torch.equal(targets[None], expected[1])
