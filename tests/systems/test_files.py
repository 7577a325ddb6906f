"""A system is a folder of at most four files; cards and mechanisms, and all that lists them, know no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.evidence.claim.system_card import SYSTEMS, systems

FILES = {"__init__", "card", "mechanism", "ops", "study"}
# What a fifth file is for, where four of them do not hold a mechanism.
FURTHER = {
    "low_bandwidth_partitioning": {"rails"},  # what rings take on three classes of links
    "gpipe": {"image_network"},  # two convolutional networks, beside the schedule and its claims
    # graphs of others and what processes read of one; what a user runs; what an epoch moves
    "gnn_pipe": {"graph_file", "job", "volume"},
    "redco": {"tasks"},  # what users write: three tasks beside the decoders that the study cuts
    "shallow_again": {"drawn_digits"},  # the images that its study learns from, drawn and not kept
    "flex_sp": {
        "bucket",  # the two dynamic programs
        "layout",  # the greedy groups of one micro-batch
        "published_job",  # the paper's constants, lengths and baselines
        "running",  # groups of a step that nothing joins
        "solver",  # the mixed-integer program
    },
    "galvatron": {
        "cost",  # the cost model of a whole planner, as large as its search
        "layerwise_program",  # a plan that no Plan can say, as a program
        "strategy_price",  # our costs in place of its profiles
        "planner",  # the search on the models of users
    },
    "nano_flow": {
        "nano_batch",  # how a batch is cut
        "pipeline",  # the nano-batches' kernels in time
        "search",  # for both; the mechanism is the step that is made of them
    },
    "fs_moe": {
        "chunk_program",  # the list schedule as rows
        "gates",  # its routing functions, of tensors
        "grid",  # the paper's 1,458 layers by its constants
        "job",  # what a user measures of a layer
        "planner",  # the parts of a user's own model
        "published",  # four layers whose parts are published
        "routing_function",  # those that train, as another model of the user's
    },
    "tutel": {"layer", "vision_rows"},  # the paper's layer by data sheets; a small vision model as a program
    "byte_scale": {"published_job"},  # steps of its paper's job, by what the paper says of it
    "zeppelin": {
        "remap",
        "remapped_rows",
        "routed_hop",
        "step",
    },  # its two other parts, and steps that have them
    "ex_flow": {"decode_rows"},  # a prompt and decoding steps as a program
    "expert_flow": {"job"},  # what a user asks of caches on a routing
    "hecate": {"job", "placement", "rows"},  # what a user runs; what fills the slot; its steps as a program
    "moe_inference_survey": {"job"},  # what a user asks of it
    "skip_pipe": {
        "path_search",
        "published",
        "schedule",
    },  # the annealing of paths, the authors' network, and what fills the slot, beside the dispatch
}
BLOCKED = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "tokenizers", "safetensors"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
for name in sys.argv[1:]:
    importlib.import_module(name)
from meshwright.evidence.claim.reproduce import CARD
from meshwright.evidence.claim.system_card import systems

for card in systems():
    functions = [claim.by for claim in card.claims]
    functions += [said for claim in card.claims for said in claim.null.values() if isinstance(said, str)]
    for function in functions:
        place, _, name = function.rpartition(":")
        if place != "study":
            getattr(importlib.import_module(f"{card.module}.{place or CARD}"), name)
print(sum(len(card.claims) for card in systems()))
"""


def folders() -> list[Path]:
    return sorted(path.parent for path in SYSTEMS.glob("*/*/card.py"))


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_a_system_is_a_card_a_mechanism_its_handlers_and_its_study(folder: Path) -> None:
    found = {path.stem for path in folder.glob("*.py")}
    assert found <= FILES | FURTHER.get(folder.name, set())


def test_without_torch_cards_and_mechanisms_are_imported_and_every_claim_is_found() -> None:
    paths = sorted(path for name in ("card", "mechanism") for path in SYSTEMS.glob(f"*/*/{name}.py"))
    names = [".".join(("meshwright", "systems", *path.with_suffix("").parts[-3:])) for path in paths]
    assert len(names) > len(folders())
    done = subprocess.run([sys.executable, "-c", BLOCKED, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(len(card.claims) for card in systems())
