"""What the workbench adds to a prediction: the document of 64 devices x 64 microbatches and its JSON, in CPU time.

Claim (the workbench's own share of a slider's move): timeline, memory, critical path, parts, topology and JSON in 20 ms.

Run: python benchmarks/view_speed.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from meshwright import Cluster, Model, Workload
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs.plan.plan import Plan
from meshwright.workbench.document.drawn.drawing import drawn_trace
from meshwright.workbench.document.plan import plan_document

BOUND_S = 0.020
MOVES = 15
MOST_ROWS = 400_000
PARTS: dict[str, Sequence[str]] = {
    "without memory": ("timeline", "composition", "topology"),
    "with memory": ("timeline", "memory", "composition", "holders", "topology"),
}


def predicted(pp: int, tp: int) -> Predicted:
    """64 devices, 64 microbatches, simulated."""
    plan = Plan.of(
        Model("llama-3.1-70b"), Cluster("8x8xH100"), Workload(64, 8192), pp=pp, tp=tp, dtype="bfloat16", sharding="zero1",
        master_dtype="float32", reduction_dtype="float32", sequence_parallel=tp > 1,
    )  # fmt: skip
    found = predict(plan, Cluster("8x8xH100"))
    found.trace()
    return found


def median_s(work: Callable[[], object]) -> float:
    """Median CPU seconds."""
    times = []
    for _ in range(MOVES):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def tell(found: Predicted) -> None:
    """Every part of one plan beside the bound."""
    trace, wiring = found.trace(), found.made.wiring
    drawn_s = median_s(lambda: drawn_trace(trace, "it", wiring=wiring, most_rows=MOST_ROWS))
    print(f"{found.description}: {found.num_rows:,} rows; drawn trace {1e3 * drawn_s:.1f} ms")
    for name, parts in PARTS.items():
        made_s = median_s(partial(plan_document, found, parts=parts, most_rows=MOST_ROWS))
        document = plan_document(found, parts=parts, most_rows=MOST_ROWS)
        text_s, size = median_s(document.text), len(document.text()) / 1e6
        ratio = BOUND_S / (made_s + text_s)
        print(
            f"  {name:<15} made {1e3 * made_s:6.1f} ms, JSON {1e3 * text_s:5.1f} ms of {size:.2f} MB; ratio {ratio:.2f}"
        )


def main() -> None:
    """Print every part beside the bound; a ratio above 1 is better than claimed."""
    for pp, tp in ((8, 8), (64, 1)):
        tell(predicted(pp, tp))


if __name__ == "__main__":
    main()
