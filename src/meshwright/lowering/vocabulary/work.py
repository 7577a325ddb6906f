"""Works of the passes of a split vocabulary: what LOOKUP, S, T and SCATTER compute on a device, and exchange inside.

Where tensor-parallel devices share a stage, each has its part of the stage's rows. What is sent along the pipeline is
divided among them, as between stages: [T, h] is gathered before S and SCATTER, partial sums of it are scattered behind
LOOKUP and behind what makes the input's gradient.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.table import Exchange, Inner, Work
from meshwright.lowering.vocabulary.split import Algorithm
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator, merged, total_bytes, total_flops
from meshwright.specs.plan.plan import Plan
from meshwright.stage.exchange.inner import LOSS_ELEMENT_BYTES, LOSS_EXCHANGES
from meshwright.stage.operator.layer import SCALE_TOUCHES, MicrobatchShape
from meshwright.stage.operator.stage import embedding_operators, head_operators
from meshwright.stage.stage_pass import FINAL_NORM, TABLE_KIND
from meshwright.stage.work import microbatch_shape

# Which halves of the head's forward and backward the two passes run.
HALVES: dict[Algorithm, dict[str, tuple[str, ...]]] = {
    "one_barrier": {"S": ("F", "I"), "T": ("W",)},
    "two_barriers": {"S": ("F",), "T": ("I", "W")},
    "interlaced": {"S": ("F",), "T": ("I", "W")},
}


def vocabulary_works(plan: Plan, algorithm: Algorithm, num_stages: int) -> dict[tuple[str, int], Work]:
    """Work of every pass by (name, stage): the same on all stages. Rows are padded to a whole number for each device."""
    shape = microbatch_shape(plan)
    rows = -(-plan.model.vocabulary_size // (plan.pp * plan.tp)) * plan.tp
    model = replace(plan.model, vocabulary_size=rows)
    operators = {
        name: tuple(
            o for half in halves for o in head_operators(model, half, shape) if FINAL_NORM not in o.label
        )
        for name, halves in HALVES[algorithm].items()
    }
    operators["T"] += _rescaled(model, shape, algorithm)
    for name, half in (("LOOKUP", "F"), ("SCATTER", "B")):
        operators[name] = tuple(o for o in embedding_operators(model, half, shape) if o.kind == TABLE_KIND)
    made = {name: _work(plan, name, shape, own, algorithm) for name, own in operators.items()}
    return {(name, stage): work for name, work in made.items() for stage in range(num_stages)}


def _rescaled(model: ModelSpec, shape: MicrobatchShape, algorithm: Algorithm) -> tuple[Operator, ...]:
    """What T does with the softmax of the device's own rows, once the sums of all are known. With one barrier S has made the
    output's gradient of it as it was: T makes the logits' gradient anew. With two it is multiplied first; interlaced, S has
    waited for the sums."""
    if algorithm == "one_barrier":
        return tuple(each for each in head_operators(model, "I", shape) if each.kind == "loss")
    if algorithm == "interlaced":
        return ()
    dims = (shape.num_tokens, model.vocabulary_size // shape.tp)
    work = dims[0] * dims[1]
    return (Operator("elementwise", work, SCALE_TOUCHES * work * LOSS_ELEMENT_BYTES, dims, label="rescale"),)


def _work(
    plan: Plan, name: str, shape: MicrobatchShape, operators: tuple[Operator, ...], algorithm: Algorithm
) -> Work:
    operators, dims = merged(operators), (plan.microbatch_size, plan.workload.sequence_length)
    inner = _inner(plan, name, shape, algorithm)
    return Work(
        name, shape.num_tokens, dims, plan.dtype, total_flops(operators), total_bytes(operators), 1.0, operators, inner
    )  # fmt: skip


def _inner(plan: Plan, name: str, shape: MicrobatchShape, algorithm: Algorithm) -> tuple[Inner, ...]:
    """What tensor-parallel devices exchange inside a pass."""
    if plan.tp == 1:
        return ()
    hidden = float(shape.num_tokens * plan.model.hidden_size * shape.element_bytes)

    def along_tp(kind: str, size: float = hidden, count: int = 1) -> Inner:
        return Inner(Exchange(("tp",), algorithm=kind), size, count, "", "vocabulary parallel")

    found = [along_tp("all_gather")] if name in ("S", "SCATTER") else []
    if name == "S":
        found.append(along_tp("all_reduce", float(shape.num_tokens * LOSS_ELEMENT_BYTES), LOSS_EXCHANGES))
    if name == "LOOKUP" or name == ("S" if algorithm == "one_barrier" else "T"):
        found.append(along_tp("reduce_scatter"))
    return tuple(found)
