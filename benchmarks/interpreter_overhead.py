"""What an instruction costs besides its work: rows that do nothing, on one rank, in microseconds a row.

    python benchmarks/interpreter_overhead.py

Compute rows run on the host; asynchronous rows are handed to a stream's thread, for which nobody waits (as a SEND). One that
the next row waits for (a RECEIVE that comes too late, a sum inside a layer) the host runs itself: handed over, it would take
two switches of threads, 50 to 60 us. The lower quartile is what a quiet machine shows.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers
from meshwright.executor.rank.interpreter import Interpreter
from meshwright.executor.rank.rank_list import compile_rank
from meshwright.executor.rank.value_store import ValueStore
from meshwright.executor.rank.watchdog import Position, SharedPositions
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.timing.wiring import wire

NUM_ROWS = 1_000
NUM_ROUNDS = 21
CLAIM_US = 30.0  # issue 3, condition 7
AWAITED_CLAIM_US = 20.0  # issue 15, condition 6
ITEM = ValueKind("item", index="none", microbatch=False)
READ = Pattern("item", index="none")

EMPTY = Effect(Kind.COMPUTE, "EMPTY", (READ, READ, READ), (READ, READ._replace(part_offset=1)))
FIRST = Effect(Kind.COMPUTE, "FIRST", (), (READ,))
ASIDE = Effect(Kind.CALL, "ASIDE", (), (READ,))
WAITED = Effect(Kind.CALL, "ASIDE", (READ,), (READ,))

HANDLERS: Handlers = {
    "FIRST": lambda context, row, inputs: (None,),
    "EMPTY": lambda context, row, inputs: (None, None),
    "ASIDE": lambda context, row, inputs: (None,),
}


def rows(effect: Effect, stream: str) -> Program:
    """A list of the same row; each reads what the one before wrote."""
    builder = ProgramBuilder(
        (Axis("pp", 1),), value_kinds=(ITEM,), paths=((),), microbatches=(Microbatch(1, 1.0),)
    )
    builder.add(0, FIRST)
    for _ in range(NUM_ROWS):
        builder.add(0, effect, stream=stream)
    return builder.build()


def microseconds_a_row(program: Program) -> list[float]:
    """Of every round, the first one left out."""
    ranked = compile_rank(wire(program), 0, lambda name: None, HANDLERS)
    context = Context(0, 1, {"pp": 0}, groups=None)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        shared = SharedPositions(Path(folder) / "positions", 1, is_new=True)
        interpreter = Interpreter(ranked, ValueStore(ranked, {}), context, Position(shared, 0))
        found = []
        for _ in range(NUM_ROUNDS + 1):
            begin_s = time.perf_counter()
            interpreter.run_iteration()
            interpreter.drain()
            found.append((time.perf_counter() - begin_s) / NUM_ROWS * 1e6)
        interpreter.close()
        shared.close()
    return found[1:]


def main() -> None:
    """One JSON line a measurement."""
    torch.set_num_threads(1)
    kinds = (
        ("compute", EMPTY, "compute", CLAIM_US),
        ("stream", ASIDE, "host", CLAIM_US),
        ("awaited stream", WAITED, "host", AWAITED_CLAIM_US),
    )
    for name, effect, stream, claim_us in kinds:
        found = microseconds_a_row(rows(effect, stream))
        quartiles = statistics.quantiles(found, n=4)
        value = statistics.median(found)
        line = {
            "claim": f"interpreter overhead of a {name} row at most {claim_us:g} us",
            "value_us": round(value, 2),
            "quartiles_us": [round(quartiles[0], 2), round(quartiles[2], 2)],
            "ratio": round(claim_us / value, 2),
            "passed": value <= claim_us,
        }
        print(json.dumps(line))  # noqa: T201 - a benchmark's result is what it prints


if __name__ == "__main__":
    main()
