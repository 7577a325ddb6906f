"""Works of a program whose vocabulary is split by `SplitVocabulary`: what LOOKUP, S, T, SCATTER and the stages compute."""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.table import Work
from meshwright.lowering.vocabulary_pass import Algorithm
from meshwright.lowering.work import microbatch_shape, pass_operators
from meshwright.specs.layer_operator import MicrobatchShape
from meshwright.specs.layers import StageLayers
from meshwright.specs.operator import Operator, merged, total_bytes, total_flops
from meshwright.specs.plan import Plan
from meshwright.specs.stage_work import embedding_operators, head_operators

FINAL_NORM = "final norm"  # label of the operators before the head that stay with the last stage
# Which halves of the head's forward and backward the two passes run.
HALVES: dict[Algorithm, dict[str, tuple[str, ...]]] = {
    "one_barrier": {"S": ("F", "I"), "T": ("W",)},
    "two_barriers": {"S": ("F",), "T": ("I", "W")},
}


def vocabulary_works(plan: Plan, algorithm: Algorithm) -> dict[tuple[str, int], Work]:
    """Work of every compute by (name, stage), without tensor, context or expert parallelism inside.

    S and T have the products of the head with this device's rows, padded to a whole number; F, I, W and B of a stage its
    blocks, of the last also the final norm.
    """
    shape = microbatch_shape(plan)
    rows = -(-plan.model.vocabulary_size // (plan.pp * plan.tp)) * plan.tp
    local = replace(plan, model=replace(plan.model, vocabulary_size=rows), vocabulary="ends")
    found = {}
    for stage, layers in enumerate(plan.stages()):
        for name in ("F", "B", "I", "W", "R"):
            found[name, stage] = _work(plan, name, shape, _stage(local, layers, name, shape))
        for name, halves in HALVES[algorithm].items():
            head = tuple(o for half in halves for o in _head(local, half, shape) if FINAL_NORM not in o.label)
            found[name, stage] = _work(plan, name, shape, head)
        found["LOOKUP", stage] = _work(plan, "LOOKUP", shape, embedding_operators(local.model, "F", shape))
        found["SCATTER", stage] = _work(plan, "SCATTER", shape, embedding_operators(local.model, "B", shape))
    return found


def _stage(plan: Plan, layers: StageLayers, name: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """A stage without embedding and head, but with the norm before the head."""
    blocks = layers._replace(has_embedding=False, has_head=False)
    found = pass_operators(plan, blocks, name, shape)
    if layers.has_head and name != "R":
        found += tuple(o for o in _head(plan, name, shape) if FINAL_NORM in o.label)
    return found


def _head(plan: Plan, name: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    return head_operators(plan.model, name, shape)


def _work(plan: Plan, name: str, shape: MicrobatchShape, operators: tuple[Operator, ...]) -> Work:
    operators = merged(operators)
    dims = (plan.microbatch_size, plan.workload.sequence_length)
    return Work(
        name, shape.num_tokens, dims, plan.dtype, total_flops(operators), total_bytes(operators),
        1.0 / plan.num_chunks, operators,
    )  # fmt: skip
