"""Operators timed one by one: each once, in its own format; those of which nobody knows a case are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.executor.measure import cases, operators
from meshwright.executor.measure.operators import case_of, measure_operators, on_cuda
from meshwright.specs.operator import Operator

PRODUCT = Operator("matmul", 2 * 8 * 16 * 32, 4 * (8 * 32 + 32 * 16 + 8 * 16), (8, 16, 32))
SCORES = Operator("attention", 1.0, 1.0, (1, 4, 2, 16, 8, 1))
STEPPED = Operator("optimizer", 1.0, 1.0, (4096,))


def test_equal_operators_are_timed_once_and_others_named() -> None:
    window = replace(SCORES, shape=(1, 4, 2, 16, 8, 4))
    routing = Operator("routing", 1.0, 1.0, (16, 4, 2))
    said: list[str] = []
    timed, unknown = measure_operators(
        [PRODUCT, replace(PRODUCT, label="again"), SCORES, window, routing],
        "cpu",
        "float32",
        1e-4,
        said.append,
    )
    assert [each.operator for each in timed] == [PRODUCT, SCORES] and unknown == [window, routing]
    assert all(each.seconds > 0 and each.spread >= 0 for each in timed)
    assert said == ["matmul (8, 16, 32)", "attention (1, 4, 2, 16, 8, 1)"]


def test_operands_have_the_format_that_is_asked_for_and_the_optimizers_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.dtype] = []

    def note(*shape: int) -> cases.Thunk:
        seen.append(torch.ones(1).dtype)
        return lambda: None

    monkeypatch.setattr(cases, "linear", note)
    monkeypatch.setattr(cases, "adamw", note)
    measure_operators([PRODUCT, STEPPED], "cpu", "bfloat16", 1e-4)
    assert seen == [torch.bfloat16, torch.float32] and torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_attention_of_grouped_queries_gives_as_many_numbers_as_it_has_queries(phase: str) -> None:
    prepare = case_of(replace(SCORES, phase=phase))
    assert prepare is not None
    result = prepare()()
    shape = (1, 16, (4 + 2 * 2) * 8) if phase == "backward" else (1, 16, 4 * 8)
    found = result[0] if isinstance(result, tuple) else result
    assert isinstance(found, torch.Tensor) and found.shape == shape


class FakeEvent:
    """A clock that the calls turn on: each takes 10 us."""

    calls = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = FakeEvent.calls

    def synchronize(self) -> None:
        """It has ended."""

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) * 0.01


def test_on_cuda_as_many_calls_lie_between_events_as_take_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)

    def run() -> None:
        FakeEvent.calls += 1

    times = on_cuda(run, 0.0)
    assert times == pytest.approx([1e-5] * operators.MIN_REPETITIONS)
    assert FakeEvent.calls == operators.NUM_WARM_UPS + 1 + 200 * operators.MIN_REPETITIONS
