"""The command on a system's card, on a model and a cluster that the card does not know."""

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

VALUES = {
    "MODEL": "gpt2",
    "PROCESSES": "2",
    "CLUSTER": "1x4xA100-80",
    "BATCH": "8",
    "TOKENS": "128",
    "PLAN": "plan.toml",
    "STAGES": "5",
    "FILE": "load.csv",
    "devices=2)": "devices=2, epochs=1)",  # of a graph network: one is enough to see that it trains
}
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


def words_of(card: SystemCard) -> list[str]:
    """The first command, its capitals replaced; what follows a comma in words is prose."""
    text = re.split(r"; |, or these words|, of a plan| \(plan.toml: ", card.use)[0]
    for name, value in VALUES.items():
        text = text.replace(name, value)
    command, *words = shlex.split(text)
    assert command == "meshwright", f"{card.name}: {card.use}"
    return words


def write_data(folder: Path) -> None:
    """A ring of forty people in two camps, modules and a plan of the model that stands for them."""
    edges = "".join(f"{n},{(n + 1) % 40}\n" for n in range(40))
    (folder / "EDGES.csv").write_text(edges)
    (folder / "NODES.csv").write_text("".join(f"{n},{n // 20},{n},{n % 7}\n" for n in range(40)))
    (folder / "load.csv").write_text("arrived_at_s,prompt_tokens,output_tokens\n" + "0.1,100,9\n" * 20)
    (folder / "mine.py").write_text(MODULES)
    model = ModelSpec.decoder(2, 64, 4, vocabulary_size=256, max_sequence_length=32)
    model = replace(model, has_tied_embeddings=False)
    cluster = Cluster("2xcpu")
    plan = Plan.of(model, cluster, Workload(4, 32), tp=2)
    plan.save(folder / "plan.toml")


@pytest.mark.parametrize("card", always(BUILT, QUICK), ids=lambda card: card.name)
def test_the_command_on_the_card_runs(
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
    words = [word.replace("mine.py", str(tmp_path / "mine.py")) for word in words_of(card)]
    if words[0] == "check":
        job = ("gpt2", "1x4xMI300X", "--global-batch", "8", "--seq", "128", "--extrapolate")
        assert run("plan", *job, "-o", VALUES["PLAN"]).code == 0
    if words[0] != "plan":
        assert run(*words).code == 0
        return
    if "--requests" in words:  # its plans are of serving, and have no file
        assert run(*words).code == 0
        return
    assert run(*words, "-o", "found.toml").code == 0
    found = Plan.load("found.toml")
    for pair in words[words.index("--fix") + 1].split(",") if "--fix" in words else ():
        name, _, value = pair.partition("=")
        assert str(getattr(found, name)).startswith(value)  # a slot may say its choice behind the name
