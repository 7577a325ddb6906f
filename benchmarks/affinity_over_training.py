"""How affinity between layers grows while a small mixture of experts is trained, and what balance costs moves: pictures.

Four layers of twelve experts, one a token, 64 wide, are trained on the standard library's sources on one process, with a
loss that balances experts and without. Every fifth step is recorded; every eight recorded ones are placed by themselves,
fitted to their first half and tried on the other. These are the commands, of a plan of this model:

    meshwright train plan.toml --iterations 400 --learning-rate 2e-3 --balance-loss 0.01 --record-routing balanced.npz \\
        --routing-steps 400 --routing-every 5
    meshwright place balanced.npz --devices 4 --by ex_flow --by round_robin --by-steps 8 -o growth.svg

The trade-off of moves and load is that of the trace that comes with the package (`place ... -o NAME.svg`).

Run: OMP_NUM_THREADS=1 python benchmarks/affinity_over_training.py FOLDER [--steps 400]
docs/systems/ex_flow.md shows what it wrote.
"""

from __future__ import annotations

import argparse
import sys
from importlib.resources import as_file, files
from pathlib import Path

import meshwright as mw
from meshwright import api
from meshwright.api.subjects.placing import StepsTrial
from meshwright.cli.look.placing_view import steps_rows, write_growth, write_trade_off
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.training.recipe import Recipe

LAYERS, EXPERTS, WIDTH, HEADS = 4, 12, 64, 4
BATCH, SEQUENCE = 8, 128
DEVICES, EVERY, TOGETHER = 4, 5, 8
LEARNING_RATE, BALANCE = 2e-3, 0.01
WEIGHTS = (0.1, 0.14, 0.18, 0.2, 0.25, 0.3, 0.5, 1, 3)
OTHERS = ("ex_flow", "contiguous", "round_robin", "eplb", "moe_tuner")


def plan() -> Plan:
    """What is trained: bytes in, bytes out, on one process."""
    model = ModelSpec.decoder(
        LAYERS,
        WIDTH,
        HEADS,
        num_kv_heads=HEADS,
        vocabulary_size=256,
        max_sequence_length=SEQUENCE,
        name="moe of 4 x 12",
    ).changed(
        architecture="mixtral", num_experts=EXPERTS, num_experts_per_token=1, expert_intermediate_size=WIDTH
    )
    return Plan.of(model, mw.Cluster.detect(1), Workload(BATCH, SEQUENCE))


def grown(folder: Path, balance: float, steps: int) -> tuple[StepsTrial, ...]:
    """Train and record, then place every run of steps by itself."""
    path = folder / f"balance-{balance:g}.npz"
    done = api.run_training(
        plan(), iterations=steps, recipe=Recipe(learning_rate=LEARNING_RATE, balance_loss=balance), measures_memory=False,
        record_routing=path, routing_steps=steps, routing_every=EVERY,
    )  # fmt: skip
    losses = done.result.losses
    sys.stdout.write(f"balance {balance:g}: {losses[0]:.3f} to {sum(losses[-10:]) / 10:.3f} nats a byte\n")
    return api.place_over_steps(path, DEVICES, by=("ex_flow", "round_robin"), together=TOGETHER)


def main() -> None:
    """Both trainings, their tables and pictures, then the trade-off."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--steps", type=int, default=400)
    asked = options.parse_args()
    for balance, name in ((BALANCE, "affinity-growth"), (0.0, "affinity-growth-unbalanced")):
        found = grown(asked.folder, balance, asked.steps)
        for row in steps_rows(found):
            sys.stdout.write("  ".join(f"{value:>12}" for value in row.values()) + "\n")
        write_growth(found, asked.folder / f"{name}.svg")
    by = [*OTHERS, *(f"ex_flow(load_weight={weight:g})" for weight in WEIGHTS)]
    with as_file(files("meshwright.systems.moe") / "standard_library_routing.npz") as path:
        write_trade_off(api.place_experts(path, DEVICES, by=by), asked.folder / "placement-trade-off.svg")


if __name__ == "__main__":
    main()
