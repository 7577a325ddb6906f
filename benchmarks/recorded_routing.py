"""The routing trace that comes with the package: a small mixture of experts, trained here on the standard library's sources.

Eight layers of sixteen experts, two of them a token, 96 wide, are trained for some minutes on one process, without a loss
that balances the experts unless `--balance` gives it a coefficient. Then documents are read one by one, each from its
beginning, and which experts every byte goes to is written: the step of a token is the number of its document, so a placement
is fitted to the first documents and tried on others.

Run: OMP_NUM_THREADS=1 python benchmarks/recorded_routing.py OUT.npz [--steps 400] [--documents 40] [--balance 0]
It made src/meshwright/systems/moe/standard_library_routing.npz as it stands, by Python 3.11.7.
"""

from __future__ import annotations

import argparse
import platform
import sysconfig
from functools import partial
from pathlib import Path

import numpy as np
import torch

import meshwright as mw
from meshwright.api.trainings.training import run_training
from meshwright.executor.models.decoder import build_model
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.routing.routing_file import save_routing
from meshwright.specs.routing.routing_trace import RoutingTrace, TraceRun
from meshwright.specs.training.recipe import Recipe

LAYERS, EXPERTS, PER_TOKEN, WIDTH, HEADS = 8, 16, 2, 96, 4
BATCH, SEQUENCE, DOCUMENT_BYTES = 4, 256, 256
LEARNING_RATE = 2e-3


def model() -> ModelSpec:
    """What is trained: bytes in, bytes out."""
    return ModelSpec.decoder(
        LAYERS, WIDTH, HEADS, num_kv_heads=HEADS, vocabulary_size=256, max_sequence_length=SEQUENCE,
        name="moe of 8 x 16",
    ).changed(
        architecture="mixtral", num_experts=EXPERTS, num_experts_per_token=PER_TOKEN, expert_intermediate_size=WIDTH,
    )  # fmt: skip


def trained(steps: int, balance: float) -> tuple[dict[str, torch.Tensor], float]:
    """Its parameters after so many steps, and the mean loss of the last ten, nats a byte."""
    plan = Plan.of(model(), mw.Cluster.detect(1), Workload(BATCH, SEQUENCE))
    done = run_training(
        plan,
        iterations=steps,
        recipe=Recipe(learning_rate=LEARNING_RATE, balance_loss=balance),
        measures_memory=False,
    )
    return done.result.parameters, float(np.mean(done.result.losses[-10:]))


def documents(count: int) -> list[tuple[str, bytes]]:
    """The first bytes of modules of the standard library that are long enough, evenly spread over their names."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    found = [(path.name, path.read_bytes()[:DOCUMENT_BYTES]) for path in paths]
    long = [each for each in found if len(each[1]) == DOCUMENT_BYTES]
    return [long[number * len(long) // count] for number in range(count)]


def routed(parameters: dict[str, torch.Tensor], texts: list[bytes]) -> np.ndarray:
    """[documents x bytes, layers, experts of a byte]."""
    whole = build_model(model())
    whole.load_state_dict(parameters, strict=False)
    chosen: dict[int, torch.Tensor] = {}
    for layer, block in whole.layers.items():
        block.mixture.listeners.append(partial(chosen.__setitem__, int(layer)))
    rows = []
    with torch.no_grad():
        for text in texts:
            whole(torch.tensor(list(text))[None])
            rows.append(torch.stack([chosen[layer] for layer in range(LAYERS)], 1))
    return torch.cat(rows).numpy()


def main() -> None:
    """Train, read documents, write the trace."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("out", type=Path)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--documents", type=int, default=40)
    options.add_argument("--balance", type=float, default=0.0)
    asked = options.parse_args()
    parameters, loss = trained(asked.steps, asked.balance)
    found = documents(asked.documents)
    experts = routed(parameters, [text for _, text in found])
    runs = tuple(TraceRun(number, 0, DOCUMENT_BYTES) for number in range(len(found)))
    source = (
        f"{model().name} after {asked.steps} steps of {BATCH * SEQUENCE} bytes of the standard library "
        f"(Python {platform.python_version()}), balance loss {asked.balance:g}, {loss:.3f} nats a byte; a step is a document"
    )
    save_routing(RoutingTrace(experts, EXPERTS, tuple(range(LAYERS)), runs, source), asked.out)
    print(source)


if __name__ == "__main__":
    main()
