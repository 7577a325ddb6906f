"""What the steps of a load are made of: seconds of products, attention, streaming, exchanges, by the kernels' curves.

A step of a replica without stages is a row of works and exchanges, so its seconds are a sum over kinds of kernels. Sums at
the nodes of a step table's grid are interpolated as the table is, for all steps of a load at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import meshwright.catalog  # noqa: F401 - knows what fills the slot `costs`
from meshwright.costs.roofline import Roofline
from meshwright.serving.fleet.replica import SimulatedReplica
from meshwright.serving.loop.arrivals import ClientArrivals, RecordedArrivals
from meshwright.serving.policy.limits import Limits
from meshwright.serving.request.arrival import ClosedLoop
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import LOWERED_TOKENS, ForwardProgram, StepTime
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.replica_memory import replica_memory
from meshwright.serving.simulated.step_surface import Grid
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model

from .serving_rows import MOST_SEQUENCES, MOST_TOKENS, TPOT, ServedRow

Floats = NDArray[np.float64]
KINDS = {"matmul": 0, "grouped_matmul": 0, "attention": 1, "cached_attention": 2}
STREAM, EXCHANGE, ROOFLINE = 3, 4, 5
PARTS = ("matmul", "attention", "cached_attention", "stream", "exchange", "roofline")
LONGEST = 22_016  # tokens of a sequence: the longest row has 20,000 and 2,000
BLOCK_TOKENS = 16


@cache
def program_of(model: str, device: str, tp: int, dtype: str, cache_dtype: str) -> ForwardProgram:
    """Priced as plans are, a chip without a table by the nearest one that has one."""
    cluster = replace(Cluster(f"1x8x{device}"), costs="nearest_kernels")
    return ForwardProgram(load_model(model), cluster, ReplicaLayout(tp=tp), dtype, cache_dtype=cache_dtype)


def step_parts(program: ForwardProgram, batch: BatchShape) -> Floats:
    """Of one step: its works and exchanges stand one behind the other."""
    found, kernels, roofline = np.zeros(len(PARTS)), program.costs, Roofline(program.cluster)
    asked, works = program.asked, program.works(batch)
    share = batch.num_tokens / LOWERED_TOKENS
    counts = np.bincount(
        asked.question_of_row[asked.wiring.program.list_of_row == 0], minlength=len(asked.questions)
    )
    for question, count in zip(asked.questions, counts, strict=True):
        if question.exchange is not None:
            size = question.num_bytes * share
            cost = kernels.exchange_cost(question.exchange, size, question.ends)
            naive = roofline.exchange_cost(question.exchange, size, question.ends)
            found[EXCHANGE] += count * (cost.seconds + cost.latency_s)
            found[ROOFLINE] += count * (naive.seconds + naive.latency_s)
        elif question.work >= 0:
            work = works[question.work]
            found[ROOFLINE] += count * roofline.cost(work).seconds
            for each in work.operators:
                seconds = kernels.operator(each, work.dtype).seconds
                found[KINDS.get(each.kind, STREAM)] += count * each.count * seconds
    return found


class PartTable:
    """Seconds of steps by part, [steps, PARTS]."""

    def __init__(self, program: ForwardProgram) -> None:
        self.program = program
        grid = Grid.of(MOST_TOKENS, MOST_SEQUENCES, LONGEST)
        batches = list(grid.batches())
        program.prepare(batches)
        known = {batch: step_parts(program, batch) for batch in dict.fromkeys(batches)}

        def rows(tokens: int, wanted: int = 0) -> Floats:
            return known[BatchShape(tokens, 0, wanted)]

        self._rows = np.array(grid.rows), np.stack([rows(n) for n in grid.rows])
        self._head = np.array(grid.head), np.stack([rows(1, n) - rows(1) for n in grid.head])
        ys, xs = grid.chunks
        chunks = [[known[BatchShape(y, max(y, y * x // 2), 0)] - rows(y) for x in xs] for y in ys]
        self._chunks = np.array(ys), np.array(xs), np.array(chunks)
        ys, xs = grid.decodes
        decodes = [[known[BatchShape(0, 0, 0, y, y * x)] - rows(y, y) for x in xs] for y in ys]
        self._decodes = np.array(ys), np.array(xs), np.array(decodes)

    def seconds(self, steps: Floats) -> Floats:
        """Of steps whose five numbers are those of `BatchShape`."""
        tokens, pairs, chunks, decodes, context = steps.T
        found = _line(*self._rows, tokens + decodes) + _line(*self._head, chunks + decodes)
        prompts, answers = tokens > 0, decodes > 0
        seen = 2.0 * pairs[prompts] / tokens[prompts]
        found[prompts] += _plane(*self._chunks, tokens[prompts], seen)
        found[answers] += _plane(*self._decodes, decodes[answers], context[answers] / decodes[answers])
        return found


def _places(nodes: NDArray[Any], x: Floats) -> tuple[NDArray[np.intp], Floats]:
    i = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(nodes) - 2)
    return i, ((x - nodes[i]) / (nodes[i + 1] - nodes[i]))[:, None]


def _line(nodes: NDArray[Any], values: Floats, x: Floats) -> Floats:
    i, share = _places(nodes, x)
    return np.asarray(values[i] * (1 - share) + values[i + 1] * share)


def _plane(ys: NDArray[Any], xs: NDArray[Any], values: Floats, y: Floats, x: Floats) -> Floats:
    i, up = _places(ys, y)
    j, along = _places(xs, x)
    low = values[i, j] * (1 - along) + values[i, j + 1] * along
    high = values[i + 1, j] * (1 - along) + values[i + 1, j + 1] * along
    return np.asarray(low * (1 - up) + high * up)


@cache
def part_table(model: str, device: str, tp: int, dtype: str, cache_dtype: str) -> PartTable:
    """Of a replica."""
    return PartTable(program_of(model, device, tp, dtype, cache_dtype))


class _Unhurried:
    """Steps that take a second each, and are kept."""

    def __init__(self) -> None:
        self.shapes: list[BatchShape] = []
        self.runs: list[int] = []

    def step(self, batch: BatchShape) -> StepTime:
        self.shapes.append(batch)
        self.runs.append(1)
        return StepTime(1.0, 1.0)

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        self.shapes.append(BatchShape(0, 0, 0, num_decodes, num_context))
        self.runs.append(most)
        return most, float(most)

    def steps(self) -> Floats:
        """[steps, 5]."""
        runs = np.array(self.runs)
        found = np.repeat(np.array(self.shapes, np.float64), runs, axis=0)
        behind = np.arange(len(found)) - np.repeat(np.cumsum(runs) - runs, runs)
        found[:, 4] += behind * found[:, 3]
        return found


def parts_of(row: ServedRow) -> tuple[Floats, float, int]:
    """Seconds of a row's figure by part, how many steps it has, and layers of the model. Raises OutOfMemoryError.

    The mean time of a token is the sum over steps of their seconds times those who get one, over all tokens."""
    table = part_table(row.model, row.device, row.tp, row.dtype, row.cache_dtype)
    limits = Limits(MOST_TOKENS, row.most_sequences, row.prompt + row.output)
    memory = replica_memory(table.program, limits, BLOCK_TOKENS, row.used_share)
    watched = _Unhurried()
    replica = SimulatedReplica(watched, memory.num_blocks, BLOCK_TOKENS, limits)
    requests = row.requests()
    replica.serve(
        ClientArrivals(ClosedLoop(requests, row.num_clients))
        if row.num_clients
        else RecordedArrivals(requests)
    )
    steps = watched.steps()
    weights = np.ones(len(steps))
    if row.kind == TPOT:
        weights = steps[:, 3] / (row.num_requests * (row.output - 1))
    return weights @ table.seconds(steps), float(weights.sum()), table.program.model.num_layers


def features(rows: Sequence[ServedRow]) -> Floats:
    """[rows, parts, then steps and steps times layers]."""
    found = []
    for row in rows:
        parts, steps, layers = parts_of(row)
        found.append([*parts, steps, steps * layers])
    return np.array(found)
