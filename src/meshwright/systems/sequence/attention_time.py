"""Seconds of attention over devices that share a sequence: of one layer's program, by kernels and links measured alone.

A layer is lowered with its exchanges as rows and simulated once; what its other operators take is taken off again.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from meshwright.costs.kernel.curve import GpuKernels, nearest_kernels
from meshwright.ir.program import Program
from meshwright.prediction.step_program import step_program, step_trace
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.operator.attention import OF_ATTENTION

VOCABULARY = 256  # of the layer's model: its tables are taken off, too


class Heads(NamedTuple):
    """Attention's shape: query and key-value heads, and numbers of one."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class AttentionSeconds(NamedTuple):
    """Of one layer, forward and backward."""

    forward: float
    backward: float


@cache
def attention_seconds(
    cluster: ClusterSpec, heads: Heads, num_sequences: int, sequence_length: int, **choices: Any
) -> AttentionSeconds:
    """Of all devices of a cluster that share these sequences; `choices`: fields of a plan, `context` and what goes with it.

    Raises PlanError for what there is no such plan of.
    """
    model = ModelSpec.decoder(
        1, heads.num_heads * heads.head_dim, heads.num_heads, num_kv_heads=heads.num_kv_heads,
        vocabulary_size=VOCABULARY, max_sequence_length=sequence_length,
    )  # fmt: skip
    workload = Workload(num_sequences, sequence_length)
    plan = Plan.of(
        model,
        cluster,
        workload,
        cp=len(cluster.devices),
        microbatch_size=num_sequences,
        dtype="bfloat16",
        **choices,
    )
    kernels = nearest_kernels(cluster)
    made = step_program(plan, cluster, in_segments=True)
    trace, program = step_trace(made, made.priced(kernels), 1), made.wiring.program
    is_first, names = program.list_of_row == 0, _names(program)
    start = {name: trace.start_s[0, is_first & (names == name)].min() for name in ("F", "B")}
    end_s = trace.end_s[0, is_first & (names == "B")].max()
    return AttentionSeconds(
        float(start["B"] - start["F"]) - _others_s(program, "F", kernels),
        float(end_s - start["B"]) - _others_s(program, "B", kernels),
    )


def _names(program: Program) -> Any:
    import numpy as np

    return np.array([effect.name for effect in program.tables.effects])[program.columns.effect]


def _others_s(program: Program, name: str, kernels: GpuKernels) -> float:
    """Of the operators of one pass that are none of attention."""
    rows = [program.row(row) for row in range(program.num_rows) if program.list_of_row[row] == 0]
    works = [row.work for row in rows if row.name == name and row.work is not None]
    others = [each for work in works for each in work.operators if not _is_of_attention(each)]
    return sum(kernels.operator(each, "bfloat16").seconds * each.count for each in others)


def _is_of_attention(operator: Operator) -> bool:
    return operator.kind == "attention" or operator.label in OF_ATTENTION
