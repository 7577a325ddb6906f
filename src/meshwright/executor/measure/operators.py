"""Timing operators one by one on a device, as the executor runs them: what a kernel takes here, beside what a curve says."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from meshwright.executor.measure import cases
from meshwright.executor.measure.cases import Thunk, time_case
from meshwright.executor.measure.recorder import quantile, spread
from meshwright.specs.operator import Operator

NUM_WARM_UPS = 3
LEAST_SPAN_S = 2e-3  # between two events; the clock of events has half a microsecond
MOST_CALLS = 500  # between two events, all issued ahead: more fill the queue of launches
MIN_REPETITIONS = 5
OPTIMIZER_DTYPE = torch.float32  # of the master copy that is stepped


@dataclass(frozen=True)
class OperatorTime:
    """Seconds of one occurrence, the median of its repetitions; ``spread``: half the distance between their quartiles, over
    the median."""

    operator: Operator
    seconds: float
    spread: float


def measure_operators(
    operators: Iterable[Operator],
    device: str,
    dtype: str,
    budget_s: float = 0.05,
    said: Callable[[str], None] | None = None,
) -> tuple[list[OperatorTime], list[Operator]]:
    """Time every distinct operator alone on a device.

    Args:
        device: "cuda", where events on the stream are read and launches are issued ahead, or "cpu".
        dtype: of operands; of the optimizer's it is float32.
        budget_s: of one operator.
        said: called with each operator's name before it is timed.

    Returns the times, and the operators of which no case is known here.
    """
    timed, unknown = list[OperatorTime](), list[Operator]()
    for operator in dict.fromkeys(operators):
        prepare = case_of(operator)
        if prepare is None:
            unknown.append(operator)
            continue
        if said is not None:
            said(f"{operator.variant} {operator.shape}")
        chosen = OPTIMIZER_DTYPE if operator.kind == "optimizer" else getattr(torch, dtype)
        with _defaults(device, chosen):
            run = prepare()
            times = on_cuda(run, budget_s) if device == "cuda" else time_case(run, budget_s)
        timed.append(OperatorTime(operator, quantile(times, 0.5), spread(times)))
        del run
    return timed, unknown


def case_of(operator: Operator) -> Callable[[], Thunk] | None:
    """What prepares an operator's operands and returns its call; None where no case is known."""
    shape, is_backward = operator.shape, operator.phase == "backward"
    match operator.variant:
        case "matmul":
            m, n, k = shape
            return lambda: cases.linear(m, n, k)
        case "matmul_input_gradient":
            tokens, num_in, num_out = shape
            return lambda: cases.input_gradient(tokens, num_out, num_in)
        case "matmul_weight_gradient":
            num_out, num_in, tokens = shape
            return lambda: cases.weight_gradient(tokens, num_out, num_in)
        case "attention" | "attention_backward" if shape[-1] == 1:
            return lambda: cases.attention(shape[:-1], is_backward)
        case "elementwise":
            return lambda: cases.add(*shape)
        case "activation" | "activation_backward":
            return lambda: (cases.gated_backward if is_backward else cases.gated)(*shape)
        case "norm" | "norm_backward":
            return lambda: (cases.norm_backward if is_backward else cases.norm)(*shape)
        case "loss" | "loss_backward":
            return lambda: cases.loss(shape, is_backward)
        case "embedding" | "embedding_backward":
            return lambda: cases.lookup(shape, is_backward)
        case "optimizer":
            return lambda: cases.adamw(shape[0])
    return None


@contextlib.contextmanager
def _defaults(device: str, dtype: torch.dtype) -> Iterator[None]:
    """New tensors are of this device and format in the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def on_cuda(run: Thunk, budget_s: float) -> list[float]:
    """Seconds of one call on the current stream, several times over, for about `budget_s`: between two events lie as many
    calls as take a few milliseconds, so that the host is ahead of the device wherever it can be."""
    for _ in range(NUM_WARM_UPS):
        run()
    one = _between_events(run, 1)
    calls = max(1, min(MOST_CALLS, math.ceil(LEAST_SPAN_S / max(one, 1e-7))))
    times: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(times) < MIN_REPETITIONS or time.perf_counter() < deadline:
        times.append(_between_events(run, calls))
    return times


def _between_events(run: Thunk, calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3 / calls
