"""Predicted beside measured peak memory of every device and tier, over layouts of a small model on processes of this machine.

    python benchmarks/layout_memory.py [WORD ...]

Measured: live storages of one executed iteration, on the device and, where the optimizer's state is offloaded, on the host;
predicted: the simulated peak of the same tier. With words only the layouts whose line has all of them. Claim: every peak is
within 10 %. One line a layout, marked where a peak is more than 7 % off; 0 where the claim holds, 3 where it does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from meshwright.api.trainings.training import run_training
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.metrics import peak_bytes
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.plan.workload import Workload

LLAMA = ModelSpec.decoder(4, 128, 4, num_kv_heads=2, vocabulary_size=512, max_sequence_length=128)
GPT = ModelSpec.gpt(
    4, 128, 4, vocabulary_size=512, max_sequence_length=128, name="gpt", source="benchmarks/layout_memory.py"
)
MODELS = {"llama": LLAMA, "tied": replace(LLAMA, has_tied_embeddings=True), "gpt": GPT}
WORKLOAD = Workload(8, 64)
LARGEST_ERROR, NOTED_ERROR = 0.10, 0.07
MIB = 1 << 20
NUM_PROCESSES = 4
OFFLOAD = {"passes": (PassOption("offload_optimizer"),)}
MIXED = {"dtype": "bfloat16", "reduction_dtype": "float32", "master_dtype": "float32"}
Layout = tuple[str, dict[str, Any]]
LAYOUTS: tuple[Layout, ...] = (
    ("llama", {}),
    ("llama", {"pp": 2}),
    ("llama", {"pp": 2, "microbatch_size": 2}),
    ("llama", {"pp": 2, "schedule": "gpipe"}),
    ("llama", {"pp": 2, "recompute": "full"}),
    ("llama", {"pp": 2, "schedule": "interleaved_1f1b"}),
    ("llama", {"pp": 2, "schedule": "zb_h1"}),
    ("llama", {"pp": 2, "schedule": "zbv"}),
    ("llama", {"pp": 2, "dtype": "bfloat16"}),
    ("llama", {"pp": 2, **MIXED}),
    ("llama", {"pp": 2, **OFFLOAD}),
    ("llama", {"pp": 2, **OFFLOAD, **MIXED}),
    ("llama", {"dp": 2, "microbatch_size": 2}),
    ("llama", {"dp": 2, **MIXED}),
    ("llama", {"dp": 2, **OFFLOAD}),
    *(("llama", {"dp": 2, "sharding": sharding}) for sharding in ("zero1", "zero2", "zero3")),
    *(("llama", {"dp": 2, "sharding": sharding, **MIXED}) for sharding in ("zero1", "zero2", "zero3")),
    *(("llama", {"dp": 2, "sharding": sharding, **OFFLOAD}) for sharding in ("zero1", "zero2", "zero3")),
    ("llama", {"dp": 2, "sharding": "zero1", **OFFLOAD, **MIXED}),
    ("llama", {"dp": 2, "sharding": "zero3", "recompute": "full"}),
    ("llama", {"tp": 2}),
    ("llama", {"tp": 2, "microbatch_size": 2}),
    ("llama", {"tp": 2, "sequence_parallel": True}),
    ("llama", {"tp": 2, "sequence_parallel": True, "recompute": "full"}),
    ("llama", {"tp": 2, **MIXED}),
    ("llama", {"tp": 2, **OFFLOAD}),
    ("llama", {"pp": 2, "tp": 2, "schedule": "zb_h1"}),
    ("llama", {"pp": 2, "tp": 2, "sequence_parallel": True}),
    ("llama", {"pp": 2, "dp": 2, "sharding": "zero1", **OFFLOAD}),
    ("llama", {"dp": 2, "tp": 2, "sharding": "zero3", "sequence_parallel": True}),
    ("gpt", {"pp": 2}),
    ("gpt", {"pp": 2, "schedule": "zb_h1"}),
    ("gpt", {"dp": 2, "sharding": "zero2"}),
    ("gpt", {"tp": 2}),
    ("gpt", {"tp": 2, "sequence_parallel": True}),
    ("tied", {"pp": 2}),
    ("tied", {"pp": 2, "schedule": "zbv"}),
    ("tied", {"dp": 2, "sharding": "zero3"}),
    ("tied", {"tp": 2}),
)


class Peak(NamedTuple):
    """Of one tier of one device, in bytes."""

    tier: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured if self.measured else float("inf")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a layout; 3 where the claim fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only layouts whose line has all of them")
    words = parser.parse_args(arguments).words
    errors = []
    with Pool(NUM_PROCESSES) as pool:
        for layout in LAYOUTS:
            label = text(layout)
            if all(word in label for word in words):
                found = peaks(layout, pool)
                error = max(abs(peak.ratio - 1.0) for peak in found)
                errors.append(error)
                print(f"{label:56}{' *' if error > NOTED_ERROR else '  '} {told(found)}", flush=True)
    worst = max(errors, default=0.0)
    print(f"{len(errors)} layouts; largest error of a peak {worst:.1%} (claim {LARGEST_ERROR:.0%})")
    return 0 if worst <= LARGEST_ERROR else 3


def text(layout: Layout) -> str:
    """A layout in words."""
    model, choices = layout
    said = {name: value for name, value in choices.items() if name not in {*MIXED, "passes"}}
    words = [model, *(f"{name}={value}" for name, value in said.items())]
    if "dtype" in choices:
        words.append("mixed" if "master_dtype" in choices else "bfloat16")
    return " ".join([*words, *(["offload"] if "passes" in choices else [])])


def peaks(layout: Layout, pool: Pool) -> list[Peak]:
    """Simulate and train one layout; a peak for every tier of every device."""
    model, choices = layout
    given = {"dp": 1, **choices}
    num_devices = given.get("pp", 1) * given["dp"] * given.get("tp", 1)
    plan = Plan.of(MODELS[model], Cluster.detect(num_devices), WORKLOAD, **given)
    done = run_training(plan, data="random", iterations=1, pool=pool)
    assert done.trace is not None
    tiers = sorted({(curve.device, curve.tier) for curve in (*done.predicted.memory, *done.trace.memory)})
    return [
        Peak(tier, peak_bytes(done.predicted, device, tier), peak_bytes(done.trace, device, tier))
        for device, tier in tiers
    ]


def told(found: Sequence[Peak]) -> str:
    """Peaks in MiB and ratios."""
    return "  ".join(
        f"{peak.tier} {peak.predicted / MIB:.2f}/{peak.measured / MIB:.2f} = {peak.ratio:.3f}"
        for peak in found
    )


if __name__ == "__main__":
    sys.exit(main())
