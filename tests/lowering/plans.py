"""Plans that the tests of lowering share: small models on small clusters, degrees by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.costs.cost import Cost, Flow
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Inner, Work
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, model_from_config
from meshwright.stage.piece import num_pieces
from tests.specs.configs import LLAMA, QWEN3_MOE

SEQUENCE = 64
DENSE = ModelSpec.decoder(4, 64, 8, num_kv_heads=4, vocabulary_size=96, intermediate_size=96)
EXPERTS = model_from_config(
    {
        **QWEN3_MOE,
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "vocab_size": 96,
        "intermediate_size": 96,
    }
)
TIED = model_from_config({**LLAMA, "num_hidden_layers": 4, "tie_word_embeddings": True})


class NamedWork:
    """Computes by their FLOPs, so that every distinct work costs something else."""

    def cost(self, work: Work, device: Any = None) -> Cost:
        """A TFLOP/s and a launch."""
        return Cost(work.flops * 1e-12 + 1e-7)


class AskedLinks:
    """Exchanges by members and bytes; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Exchange, float, tuple[int, ...]]] = []

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """A microsecond a member and a GB/s; what has other members takes other seconds."""
        self.asked.append((exchange, num_bytes, devices))
        return Cost(1e-6 * len(devices) + num_bytes * 1e-9, compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """They share no link."""
        return ()


def plan(model: ModelSpec = DENSE, *, dp: int = 1, batch: int = 0, **choices: Any) -> Plan:
    """A plan on exactly as many devices as its degrees ask for, four microbatches for every pipeline unless told."""
    world = dp
    for axis in ("pp", "cp", "tp"):
        world *= choices.get(axis, 1)
    workload = Workload(batch or 4 * dp * choices.get("microbatch_size", 1), SEQUENCE)
    given = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32", **choices}
    return Plan.of(model, Cluster(f"{world}xcpu"), workload, dp=dp, **given)


def lowered(chosen: Plan, pieces: Sequence[int] | None = ()) -> Program:
    """Its program; refined as `num_pieces` says, unless told."""
    counts = num_pieces(chosen) if pieces == () else pieces
    return lower(chosen, registered()[chosen.schedule], pieces=counts)


def rows_named(program: Program, name: str, device: int = 0) -> list[Any]:
    """Instructions of this name on one list, in its order."""
    return [view for view in program.instructions(device) if view.name == name]


def inner_of(work: Work, label: str) -> dict[tuple[str, float], int]:
    """How often a work sends what: (algorithm, bytes) -> times, of one kind of parallelism."""
    found: dict[tuple[str, float], int] = {}
    chosen: list[Inner] = [inner for inner in work.inner if inner.label == label]
    for inner in chosen:
        key = (inner.exchange.algorithm, inner.bytes)
        found[key] = found.get(key, 0) + inner.count
    return found


def product_flops(program: Program) -> float:
    """FLOPs of matrix products of all computes of a step, on all devices of the mesh."""
    total = 0.0
    for view in (view for device in range(program.num_lists) for view in program.instructions(device)):
        if view.work is not None:
            kinds = ("matmul", "grouped_matmul")
            total += sum(op.total_flops for op in view.work.operators if op.kind in kinds)
    return total * (program.num_devices // program.num_lists)


def work_of(program: Program, name: str, stage: int) -> Work:
    """The work of one name on one stage."""
    found = {
        view.work
        for device in range(program.num_lists)
        for view in rows_named(program, name, device)
        if view.stage == stage
    }
    assert len(found) == 1, f"{name} of stage {stage} has {len(found)} works"
    return found.pop()
