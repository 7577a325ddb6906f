"""Redco on this machine: a decoder cut by rules beside the whole one, all-reduces counted, three tasks of three functions.

Shapes: N parameters, flat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.executor import run_program
from meshwright.executor.job.pool import Pool
from meshwright.executor.rank.handler import ValueName
from meshwright.specs.error import UnknownNameError
from meshwright.systems.opened_pool import opened_pool
from meshwright.systems.planning.redco import named_models, small_tasks
from meshwright.systems.planning.redco.tensor_rule import tensor_rules
from meshwright.systems.planning.redco.tensor_shard import cut, module_tree
from meshwright.systems.planning.redco.three_function_task import make_task
from meshwright.systems.planning.redco.three_functions import PREDICTION, USER_LOSS, three_functions

NUM_PROCESSES, NUM_CHECKED = 2, 3
# What a task has to reach, and in how many steps: (steps, microbatches, mark, is less better).
MARKS: Mapping[str, tuple[int, int, float, bool]] = {
    "language model": (200, 2, 0.9, True),
    "maml": (800, 1, 0.5, True),
    "policy gradient": (150, 1, 0.95, False),
}


@dataclass(frozen=True, eq=False)
class Outcome:
    """Of every process: loss of the last step (its share), parameters, and what was predicted."""

    losses: tuple[float, ...]
    parameters_N: tuple[Tensor, ...]
    predictions: tuple[Tensor, ...]


def run_task(
    name: str,
    num_steps: int,
    pool: Pool,
    *,
    num_processes: int = NUM_PROCESSES,
    num_microbatches: int = 1,
    is_data_parallel: bool = True,
    dtype: str = "float32",
    **arguments: Any,
) -> Outcome:
    """Steps of a task. `is_data_parallel`: every process has its own batches, and gradients are averaged; else all have the
    same ones and parts of one model."""
    values = []
    for rank in range(num_processes):
        first = make_task(name, rank=rank, num_ranks=num_processes, **arguments).first()
        state = torch.zeros(2, len(first), dtype=first.dtype)
        values.append({ValueName("parameter"): first, ValueName("optimizer_state"): state})
    num_data_parallel = num_processes if is_data_parallel else 1
    options = {
        "task": name,
        "arguments": arguments,
        "num_data_parallel": num_data_parallel,
        "num_microbatches": num_microbatches,
        "predict_every": num_steps,
    }
    result = run_program(
        three_functions(num_data_parallel, num_microbatches, num_processes // num_data_parallel),
        handlers_module=small_tasks.__name__,
        initial_values=values,
        iterations=num_steps,
        keep=("parameter", USER_LOSS.name, PREDICTION.name),
        pool=pool,
        dtype=dtype,
        options=options,
    )
    return Outcome(
        tuple(float(rank[ValueName(USER_LOSS.name)]) for rank in result.values),
        tuple(rank[ValueName("parameter")] for rank in result.values),
        tuple(rank[ValueName(PREDICTION.name)] for rank in result.values),
    )


def _cut_decoder(model: str, num_processes: int, pool: Pool) -> Outcome:
    return run_task(
        "decoder",
        NUM_CHECKED,
        pool,
        num_processes=num_processes,
        is_data_parallel=False,
        dtype="float64",
        model=model,
    )


def loss_difference(model: str, pool: Pool | None = None, num_processes: int = NUM_PROCESSES) -> float:
    """|cut / whole - 1| of the loss in the third step, which two steps of Adam came before."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        ours, whole = (_cut_decoder(model, count, workers).losses for count in (num_processes, 1))
    return max(abs(loss / whole[0] - 1) for loss in ours)


def parameter_difference(model: str, pool: Pool | None = None, num_processes: int = NUM_PROCESSES) -> float:
    """Largest difference of any parameter behind three steps to the same part of the whole model."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        ours, alone = (_cut_decoder(model, count, workers) for count in (num_processes, 1))
    whole = named_models.build(model)
    torch.nn.utils.vector_to_parameters(alone.parameters_N[0], whole.parameters())
    rules = tensor_rules(module_tree(whole), num_processes, named_models.HEAD_DIM, least_bytes=0)
    found = 0.0
    for rank, parameters_N in enumerate(ours.parameters_N):
        parts = [cut(p, rules[name], rank, num_processes).flatten() for name, p in whole.named_parameters()]
        found = max(found, float((torch.cat(parts) - parameters_N).abs().max()))
    return found


def block_all_reduces(model: str, pool: Pool | None = None) -> float:
    """Forward all-reduces of a block on the first process; the most of any block where they differ."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        counts = _cut_decoder(model, NUM_PROCESSES, workers).predictions[0]
    return float(counts.max())


def reached(name: str, pool: Pool | None = None) -> float:
    """What a task predicts of itself behind its steps. Raises UnknownNameError."""
    if name not in MARKS:
        raise UnknownNameError("task with a mark", name, MARKS)
    num_steps, num_microbatches, _, _ = MARKS[name]
    with opened_pool(pool, NUM_PROCESSES) as workers:
        outcome = run_task(name, num_steps, workers, num_microbatches=num_microbatches)
    return float(outcome.predictions[0])


def num_marks_reached(pool: Pool | None = None) -> float:
    """Tasks whose prediction is as good as their mark."""
    found = 0
    with opened_pool(pool, NUM_PROCESSES) as workers:
        for name, (_, _, mark, is_less_better) in MARKS.items():
            value = reached(name, workers)
            found += value <= mark if is_less_better else value >= mark
    return float(found)
