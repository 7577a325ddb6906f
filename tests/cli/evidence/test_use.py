"""The commands on a system's card, on a model and a cluster that the card does not know."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.running import Runner, rough_profile
from tests.covering import always

from meshwright.evidence.claim.system_card import SystemCard, systems
from meshwright.executor.job.pool import Pool
from meshwright.specs import Cluster, ModelSpec, Workload
from meshwright.specs.plan.plan import Plan
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_file import save_routing

VALUES = {
    "MODEL": "gpt2",
    "PROCESSES": "2",
    "CLUSTER": "1x4xA100-80",
    "BATCH": "8",
    "TOKENS": "128",
    "PLAN": "plan.toml",
    "STAGES": "5",
    "FILE": "load.csv",
    "LENGTHS": "lengths.txt",
    "TEXT": "text.txt",
    "STEPS": "2",
    "ROUTING": "routing.npz",
    "EXPERTS": "qwen3-30b-a3b",
    "devices=2)": "devices=2, epochs=1)",  # of a graph network: one is enough to see that it trains
}
TRAINED = "trained.toml"  # what is trained here is small
MODULES = """
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        return x + self.down(self.up(x).relu())

def model():
    return nn.Sequential(nn.Embedding(256, 64), *(Block(64) for _ in range(2)), nn.Linear(64, 256))
"""
BUILT = [card for card in systems() if not card.is_exhibit]
LONG = ("gnn_pipe", "nano_flow")  # 8 and 5 seconds, others at most 2
QUICK = [number for number, card in enumerate(BUILT) if card.name not in LONG]


def commands_of(card: SystemCard) -> list[list[str]]:
    """The first command, and all that train what it planned, capitals replaced; what follows a comma in words is prose."""
    first, *others = re.split(r"; |, or these words|, of a plan| \(plan.toml: ", card.use)
    assert first.startswith("meshwright "), f"{card.name}: {card.use}"
    texts = [
        first,
        *(each.replace("PLAN", TRAINED) for each in others if each.startswith("meshwright train")),
    ]
    for name, value in VALUES.items():
        texts = [text.replace(name, value) for text in texts]
    return [shlex.split(text)[1:] for text in texts]


def write_data(folder: Path) -> None:
    """A ring of forty people in two camps, lengths, text, a drawn routing, modules and a plan of the model that stands for
    them."""
    edges = "".join(f"{n},{(n + 1) % 40}\n" for n in range(40))
    (folder / "EDGES.csv").write_text(edges)
    (folder / "NODES.csv").write_text("".join(f"{n},{n // 20},{n},{n % 7}\n" for n in range(40)))
    (folder / "load.csv").write_text("arrived_at_s,prompt_tokens,output_tokens\n" + "0.1,100,9\n" * 20)
    (folder / "lengths.txt").write_text("20\n30\n90\n" * 40 + "700\n")
    (folder / "text.txt").write_text("a few words of a text. " * 200)
    save_routing(markov_trace(400, 4, 8, 0.3, seed=0), folder / "routing.npz")
    (folder / "mine.py").write_text(MODULES)
    model = ModelSpec.decoder(2, 64, 4, vocabulary_size=256, max_sequence_length=32)
    model = replace(model, has_tied_embeddings=False)
    cluster = Cluster("2xcpu")
    plan = Plan.of(model, cluster, Workload(4, 32), tp=2)
    plan.save(folder / "plan.toml")
    plan.changed(tp=1, dp=2, microbatch_size=1).save(folder / TRAINED)


@pytest.mark.parametrize("card", always(BUILT, QUICK), ids=lambda card: card.name)
def test_the_commands_on_the_card_run(
    card: SystemCard,
    run: Runner,
    cache: Path,
    shared_pool: Pool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = rough_profile().tables
    gathers = dict.fromkeys(("all_gather", "reduce_scatter"), tables["all_reduce"])
    rough_profile(tables={**tables, **gathers}).save(cache / "meshwright" / "profile.json")
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    # workers of the shared pool stand in another folder than the user
    words, *others = (
        [word.replace("mine.py", str(tmp_path / "mine.py")) for word in command]
        for command in commands_of(card)
    )
    for command in others:
        ran = run(*command)
        assert ran.code == 0, ran.stderr
    if words[0] == "check":
        job = ("gpt2", "1x4xMI300X", "--global-batch", "8", "--seq", "128", "--extrapolate")
        assert run("plan", *job, "-o", VALUES["PLAN"]).code == 0
    if words[0] != "plan":
        assert run(*words).code == 0
        return
    if "--requests" in words:  # its plans are of serving, and have no file
        assert run(*words).code == 0
        return
    ran = run(*words, "-o", "found.toml")
    assert ran.code == 0, ran.stderr
    assert all(name in ran.stdout for name in values_of("--sequence-groups", words))
    found = Plan.load("found.toml")
    for pair in (pair for fixed in values_of("--fix", words) for pair in fixed.split(",")):
        name, _, value = pair.partition("=")
        assert str(getattr(found, name)).startswith(value)  # a slot may say its choice behind the name


def values_of(option: str, words: list[str]) -> list[str]:
    """What is behind the option wherever a command has it."""
    return [value for name, value in zip(words, words[1:], strict=False) if name == option]
