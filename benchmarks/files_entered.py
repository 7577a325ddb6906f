"""How many files of the package a reader of `simulate(plan)` walks through: printed, not enforced.

    python benchmarks/files_entered.py [--list]

Counts the files in which a function is called while a plan on GPUs becomes a trace, how often the walk switches from one
file to another, and how often facts of the plan are asked for again. Imports are done before, by another plan.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import meshwright as mw
from meshwright.specs import ModelSpec, Plan, Workload

PACKAGE = str(Path(mw.__file__).parent)
FACTS = ("microbatch_shape", "saving_context", "block_kinds", "dtype_bytes", "lower", "wire", "price")


class Walk:
    """Calls inside the package while it is followed."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.names: Counter[str] = Counter()
        self.num_switches = 0
        self._last = ""

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """One event of the interpreter's profiler; bodies of modules and classes are no walk."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_name == "<module>":
            return
        file = code.co_filename[len(PACKAGE) + 1 :]
        self.files[file] += 1
        self.names[code.co_name] += 1
        self.num_switches += file != self._last
        self._last = file

    def __enter__(self) -> Walk:
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def plan_of(num_layers: int) -> Plan:
    """A plan with a pipeline, tensor parallelism and sharded states on 16 GPUs."""
    model = ModelSpec.decoder(num_layers, 4096, 32, max_sequence_length=4096, vocabulary_size=32000)
    return Plan.of(
        model, mw.Cluster("2x8xH100"), Workload(64, 4096), pp=2, tp=2, sharding="zero1", sequence_parallel=True,
        overlap=("reduce", "gather"), dtype="bfloat16", master_dtype="float32", reduction_dtype="float32",
    )  # fmt: skip


def main() -> int:
    """Follow `simulate`, then `plan` and `simulate` of its first plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the files, the most entered first")
    wanted = parser.parse_args()
    mw.simulate(plan_of(8))
    plan = plan_of(16)
    with Walk() as walk:
        mw.simulate(plan)
    print(
        f"simulate(plan): {len(walk.files)} files, {walk.files.total():,} calls, {walk.num_switches:,} switches"
    )
    if wanted.list:
        for file, count in walk.files.most_common():
            print(f"{count:8,}  {file}")
    with Walk() as search:
        found = mw.plan("llama-3.1-8b", "8xH100", global_batch=64, seq=4096)
    told = ", ".join(f"{name} {search.names[name]:,}" for name in FACTS)
    print(f"plan: {len(search.files)} files, {search.files.total():,} calls; {told}")
    with Walk() as again:
        mw.simulate(found[0])
    print(f"simulate(plans[0]): {len(again.files)} files, {again.files.total():,} calls")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
