"""Sublayers that do not see the output of the one before them, so that its all-reduce runs beside them.

Paper:      Ladder-residual: parallelism-aware architecture for accelerating large model inference with communication
            overlapping, Muru Zhang, Mayank Mishra, Zhongzhu Zhou, William Brandon, Jue Wang, Yoon Kim, Jonathan
            Ragan-Kelley, Shuaiwen Leon Song, Ben Athiwaratkun, Tri Dao, 2025, arXiv 2501.06589
Problem:    Tensor parallelism waits for an all-reduce behind every attention and every feed-forward network.
Idea:       A standard sublayer j (attention and feed-forward in turn) reads x_j = x_{j-1} + y_{j-1}, with y_j = AR(F_j(x_j))
            and AR the all-reduce over the devices. A ladder sublayer reads x_j = x_{j-1} + y_{j-2}: the all-reduce of
            sublayer j-1 has the time of sublayer j to end. With c seconds of a sublayer and a of an all-reduce, n
            sublayers take n max(c, a) + min(c, a) instead of n (c + a).
Kind:       recipe
Use:        meshwright plan llama-3.1-8b 1x8xH100 --global-batch 8 --seq 4096 --fix tp=8 --variant ladder_residual
Simulated:  any dense decoder's chain, forwards and backwards; sums over tensor-parallel devices as instructions
            (`simulate` and `train` take --variant, too)
Executed:   training of any dense decoder in any layout, on gloo processes (study.py)
Differs:    1. Published rates are of inference with gpt-fast's key-value cache. A token is priced by the kernels of a part,
            an all-reduce, and what that code reads: all 1,536 positions of the cache, repeated for every query head, and a
            head whole on every device; a prompt with attention that writes its scores. Sampling is not counted.
            2. What runs side by side is not slowed, and a sum that has the time is hidden wholly: of the published runs 47 to
            86 % of sums are (throughput.csv: bound, ladder, standard). So gains at batches of 16 and 64 are predicted too
            large, three by more than a quarter; kernels that share a chip with a sum are not in our tables.
            3. Rates without NVLink are in throughput.csv, and not predicted: their links are not among our tables.
            4. With sequence parallelism a sum is a scatter and a gather; only the scatter runs beside the next part.
            5. Between pipeline stages the stream and the result that it lacks are sent, twice the bytes.
            6. Trained on bytes of the standard library, four layers and not 1B parameters. Its two seeds gave 0.967 and 0.983
            of the standard one's loss in two runs that round otherwise: within 2 % in the one, a miss in the other.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.kernel.curve import GpuKernels
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Kind
from meshwright.lowering.lower import lower
from meshwright.schedules.order import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.operator.layer import MicrobatchShape
from meshwright.stage.operator.stage import part_operators
from meshwright.systems.architecture.ladder_residual.mechanism import ladder_residual

FILLS = {"variant": "mechanism:ladder_residual"}
CLAIMS = (
    {
        "claim": "{num_blocks} blocks, sublayers of {compute} s, all-reduces of {reduce} s: n max(c, a) + min(c, a)",
        "kind": "identity",
        "unit": "s",
        "tolerance": 1e-9,
        "reason": "equal sublayers on equal devices: the arithmetic of the recurrence",
        "how": "seconds of parts whose sums are waited for one part later",
        "by": "ladder_s",
        "source": "the mechanism",
        "cases": (
            ({"num_blocks": 4, "compute": 3.0, "reduce": 1.0}, 25.0),
            ({"num_blocks": 4, "compute": 1.0, "reduce": 3.0}, 25.0),
        ),
    },
    {
        "claim": "all-reduces that a forward of a {form} of {num_blocks} blocks waits for with nothing to compute meanwhile",
        "kind": "identity",
        "unit": "waits",
        "tolerance": 1e-9,
        "reason": "counted in the program that runs",
        "how": "sums of blocks whose result is read by the first compute behind them, in a lowered training step",
        "by": "num_exposed_waits",
        "source": "the mechanism",
        "cases": (
            ({"form": "standard", "num_blocks": 80}, 160),
            ({"form": "ladder", "num_blocks": 80}, 1),
        ),
    },
    {
        "claim": "70B, TP={tp}, batch {batch}, NVLink: what a ladder's rate has beyond the standard one's",
        "kind": "predicted",
        "unit": "of the rate",
        "tolerance": 0.25,
        "reason": "of the gain, not of the rate: no gain is 1.0 off, 20 % of any rate here would be several gains",
        "how": "512 tokens behind a prompt of 1,024: kernels of a part and all-reduces, one behind the other or beside",
        "by": "gain",
        "source": "the authors' benchmark: rates of throughput.csv, ladder / standard - 1",
        "null": {"no effect": 0.0, "nearest published row": "nearest_gain"},
        "cases": (
            ({"tp": 2, "batch": 1}, 0.0359),
            ({"tp": 4, "batch": 1}, 0.1363),
            ({"tp": 8, "batch": 1}, 0.3079),
            ({"tp": 2, "batch": 4}, 0.0457),
            ({"tp": 4, "batch": 4}, 0.1043),
            ({"tp": 8, "batch": 4}, 0.2819),
            ({"tp": 4, "batch": 16}, 0.0867),
            ({"tp": 8, "batch": 16}, 0.1902),
            ({"tp": 4, "batch": 64}, 0.0872),
            ({"tp": 8, "batch": 64}, 0.1551),
        ),
    },
    {
        "claim": "here, two processes: gradients of a training step of a {form} are those of one process, largest difference",
        "kind": "measured",
        "unit": "relative",
        "tolerance": 1e-10,
        "reason": "the project's tolerance in float64",
        "how": "a decoder of 3 blocks, heads and inner units divided; relative to each gradient's largest number",
        "by": "study:gradient_difference",
        "source": "the mechanism: the layout changes nothing",
        "cases": (({"form": "ladder"}, 0.0), ({"form": "standard"}, 0.0)),
    },
    {
        "claim": "here, two processes, a slowed link: sums of a step of a {form} of {num_blocks} blocks beside a compute",
        "kind": "measured",
        "unit": "sums",
        "tolerance": 0.25,
        "reason": "2 n forward but the last, 2 n backward; one beside a norm alone may be over before",
        "how": "executed trace of a training step: all-reduces that run beside a compute on every process, median iteration",
        "by": "study:num_beside",
        "source": "the mechanism, of three blocks",
        "cases": (
            ({"form": "standard", "num_blocks": 3}, 0),
            ({"form": "ladder", "num_blocks": 3}, 11),
        ),
    },
    {
        "claim": "here: held-out loss of a four-layer byte model with ladder residuals over that of the standard one",
        "kind": "measured",
        "unit": "x",
        "tolerance": 0.02,
        "reason": "the paper's 1B models are alike; 2 % is the project's acceptance, in both directions",
        "how": "equal initial weights, data and steps; bytes of the Python standard library, mean of two seeds",
        "by": "study:loss_ratio",
        "source": "the abstract: comparable to a standard transformer",
        "cases": (({}, 1.0),),
    },
)

MODEL, CLUSTER = "llama-3.1-70b", "1x8xH100"
PROMPT, NUM_NEW = 1024, 512
NUM_POSITIONS = PROMPT + NUM_NEW
OF_SCORES = ("scores", "softmax", "result")  # operators over all positions of the cache
FORMS, PARTS = ("standard", "ladder"), ("attention", "mlp")


@dataclass(frozen=True)
class Point:
    """One measured setting; rates are tokens per second of the whole batch."""

    tp: int
    batch: int
    links: str
    standard_per_s: float
    ladder_per_s: float
    bound_per_s: float

    @property
    def gain(self) -> float:
        """What the ladder's rate has beyond the standard one's, as a share of this."""
        return self.ladder_per_s / self.standard_per_s - 1.0


@cache
def points() -> tuple[Point, ...]:
    """All settings that were measured."""
    text = Path(__file__).with_name("throughput.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Point(
            int(row["tp"]), int(row["batch"]), row["links"],
            *(float(row[f"{name}_per_s"]) for name in ("standard", "ladder", "bound")),
        )
        for row in rows
    )  # fmt: skip


def parts_s(form: str, num_blocks: int, computes: tuple[float, float], reduce_s: float) -> float:
    """Seconds of blocks whose two parts take `computes`, with an all-reduce behind each. Raises UnknownNameError."""
    if form not in FORMS:
        raise UnknownNameError("form of a residual stream", form, FORMS)
    late = FORMS.index(form)  # parts that are computed before a sum is waited for
    computed_s, ends = 0.0, [0.0] * (1 + late)
    for part in range(2 * num_blocks):
        computed_s = max(computed_s, ends[-1 - late]) + computes[part % 2]
        ends.append(max(computed_s, ends[-1]) + reduce_s)
    return ends[-1]


def ladder_s(num_blocks: int, compute: float, reduce: float) -> float:
    """Seconds of a ladder of equal parts."""
    return parts_s("ladder", num_blocks, (compute, compute), reduce)


def forward_program(form: str, num_blocks: int) -> Program:
    """The step of a small model on two devices, in segments. Raises UnknownNameError."""
    if form not in FORMS:
        raise UnknownNameError("form of a residual stream", form, FORMS)
    model = ModelSpec.decoder(num_blocks, 64, 4)
    cluster = Cluster.detect(2)
    plan = Plan.of(ladder_residual(model) if form == "ladder" else model, cluster, Workload(1, 64), tp=2)
    return lower(plan, registered()[plan.schedule], in_segments=True)


def num_exposed_waits(form: str, num_blocks: int) -> int:
    """All-reduces of blocks in the forward whose result is read by the next compute of the list."""
    program = forward_program(form, num_blocks)
    effects, found = program.tables.effects, 0
    rows = [effects[effect] for effect in program.columns.effect[: program.offsets[1]].tolist()]
    for row, behind in zip(rows, rows[1:]):
        written = {pattern.kind for pattern in row.writes}
        is_of_block = row.name == "ALL_REDUCE" and any(kind.endswith("summed") for kind in written)
        found += is_of_block and behind.kind == Kind.COMPUTE and bool(
            written & {pattern.kind for pattern in behind.reads}
        )  # fmt: skip
    return found - 1  # the embedding's is none of a block


class TokenSeconds(NamedTuple):
    """Seconds of what a pass over new tokens is made of: attention and MLP of a block, an all-reduce, the head."""

    computes: tuple[float, float]
    reduce: float
    head: float

    def pass_s(self, form: str, num_blocks: int) -> float:
        """Of all blocks and the head."""
        return parts_s(form, num_blocks, self.computes, self.reduce) + self.head


@cache
def prices(tp: int, batch: int, num_tokens: int) -> TokenSeconds:
    """For new tokens of every sequence on one of `tp` devices, as the published program computes them: over a cache of all
    positions that there will be, with keys and values repeated for every query head; attention of a prompt in products that
    write their scores; the head whole on every device."""
    model, cluster = load_model(MODEL), Cluster(CLUSTER)
    links, device = NcclCollectives(cluster), cluster.devices[0]
    kernels, is_prompt = GpuKernels(device, links), num_tokens > 1
    whole = MicrobatchShape(batch, num_tokens, "bfloat16", attention="unfused" if is_prompt else "flash")

    def step_s(step: str, shape: MicrobatchShape) -> float:
        return sum(
            kernels.operator(each, shape.dtype).seconds * each.count
            * (NUM_POSITIONS / num_tokens if each.label in OF_SCORES else 1.0)
            for each in part_operators(model, step, "F", shape, 0)
        )  # fmt: skip

    own, size = whole._replace(tp=tp), dtype_bytes(whole.dtype)
    attention_s, mlp_s = (sum(step_s(step, own) for step in (f"{p}_norm", p, f"{p} add")) for p in PARTS)
    if not is_prompt:
        cached = 2 * model.attention.num_heads // tp * model.attention.head_dim * NUM_POSITIONS
        attention_s += batch * cached * size / device.memory_bandwidth_bytes_per_s
    num_bytes = float(batch * num_tokens * model.hidden_size * size)
    reduce = links.exchange_cost(Exchange(("tp",), algorithm="all_reduce"), num_bytes, tuple(range(tp)))
    return TokenSeconds(
        (attention_s, mlp_s), reduce.seconds, step_s("final_norm", whole) + step_s("head", whole)
    )


def total_s(form: str, tp: int, batch: int) -> float:
    """Seconds of a prompt and the new tokens behind it, by kernels and collectives alone."""
    num_blocks = load_model(MODEL).num_layers
    prompt_s, token_s = (prices(tp, batch, num).pass_s(form, num_blocks) for num in (PROMPT, 1))
    return prompt_s + (NUM_NEW - 1) * token_s


def gain(tp: int, batch: int) -> float:
    """What a ladder's rate has beyond the standard one's, as a share of this."""
    return total_s("standard", tp, batch) / total_s("ladder", tp, batch) - 1.0


def nearest_gain(tp: int, batch: int) -> float:
    """The published gain of the batch next to this one on as many devices; of two that are as near, their mean."""
    others = [one for one in points() if (one.links, one.tp) == ("NVLink", tp) and one.batch != batch]
    steps = [abs(math.log2(one.batch / batch)) for one in others]
    nearest = [one.gain for one, step in zip(others, steps, strict=True) if step == min(steps)]
    return sum(nearest) / len(nearest)
