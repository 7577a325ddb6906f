"""`meshwright checkpoint`: what it shows, what it refuses, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.cli.running import Runner
from torch import Tensor

from meshwright.executor.checkpoint.checkpoint import RankCheckpoints
from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.index import CheckpointInfo
from meshwright.executor.checkpoint.planner import RankFacts
from meshwright.executor.layout.piece import Piece
from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.weights.hugging_face import load_hugging_face
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.checkpoints import Checkpoints

MODEL = ModelSpec.decoder(2, 16, 2, num_kv_heads=1, vocabulary_size=32, max_sequence_length=8)
STEPS = (2, 4)


def parameters(step: int) -> dict[str, Tensor]:
    """Of the model that a checkpoint has."""
    return {n: p.detach() for n, p in build_model(MODEL, seed=step).global_parameters().items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints of a model, with one of the moments."""
    for step in STEPS:
        held = parameters(step)
        held |= {f"exp_avg/{name}": torch.zeros_like(value) for name, value in held.items()}
        pieces = [Piece(n, tuple(t.shape), (0,) * t.dim(), t) for n, t in held.items()]
        config = CheckpointConfig(Checkpoints(str(tmp_path / "runs")), files={"plan.toml": "# the plan\n"})
        checkpoints = RankCheckpoints(config, lambda made=pieces: made)  # type: ignore[misc]
        training = {"model": MODEL.to_dict(), "optimizer": {"name": "sgd(momentum=0.5)"}}
        checkpoints.save(CheckpointInfo(step, 8 * step, 64 * step, training=training), RankFacts(2.5, "d1"))
        checkpoints.close()
    return tmp_path / "runs"


def test_inspect_shows_the_latest_of_a_folder(run: Runner, folder: Path) -> None:
    ran = run("checkpoint", "inspect", folder, "--json")
    data = ran.data
    assert ran.code == 0 and data["schema"] == 1 and data["wall_s"] > 0
    assert (data["step"], data["samples"], data["tokens"], data["loss"]) == (4, 32, 256, 2.5)
    assert data["steps"] == list(STEPS) and data["plan"] == "# the plan\n" and data["data_digest"] == "d1"
    count = len(parameters(4))
    num_bytes = sum(value.nbytes for value in parameters(4).values())
    assert data["kinds"] == [
        {"kind": "parameters", "num_tensors": count, "size_bytes": num_bytes},
        {"kind": "exp_avg", "num_tensors": count, "size_bytes": num_bytes},
    ]
    told = data["training"]
    assert told["model"].keys() >= MODEL.dimensions().keys() and told["model"]["head_dim"] == MODEL.head_dim
    assert told["optimizer"]["momentum"] == 0.5
    shapes = {row["name"]: row["shape"] for row in data["tensors"]}
    assert shapes["head.weight"] == [32, 16]


def test_inspect_shows_one_for_people(run: Runner, folder: Path) -> None:
    ran = run("checkpoint", "inspect", folder / "step-2")
    assert ran.code == 0 and "step-2" in ran.stdout and "head.weight" in ran.stdout
    assert "exp_avg/head.weight" not in ran.stdout
    assert "exp_avg/head.weight" in run("checkpoint", "inspect", folder, "--all").stdout


def test_verify_finds_what_is_broken_and_names_it(run: Runner, folder: Path) -> None:
    assert run("checkpoint", "verify", folder).code == 0
    path = folder / "step-2/tensors-0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    ran = run("checkpoint", "verify", folder, "--json")
    assert ran.code == 3 and not ran.data["whole"]
    problems = {Path(row["path"]).name: row["problems"] for row in ran.data["checkpoints"]}
    assert problems["step-4"] == [] and str(path) in problems["step-2"][0]
    assert run("checkpoint", "verify", folder / "step-4").code == 0
    (folder / "step-4/checkpoint.json").unlink()
    ran = run("checkpoint", "verify", folder, "--json")
    assert ran.code == 3 and all(row["problems"] for row in ran.data["checkpoints"])


def test_verify_notices_an_index_that_says_something_else(run: Runner, folder: Path) -> None:
    path = folder / "step-4/checkpoint.json"
    fields = json.loads(path.read_text())
    fields["tensors"]["head.weight"]["boxes"][0]["key"] = "embedding.weights"
    path.write_text(json.dumps(fields))
    ran = run("checkpoint", "verify", folder / "step-4", "--json")
    assert ran.code == 3 and "does not hold head.weight" in ran.data["checkpoints"][0]["problems"][0]


def test_convert_refuses_what_is_not_whole(run: Runner, folder: Path, tmp_path: Path) -> None:
    """One bit; then a whole file of another step, as large and with the same names."""
    path = folder / "step-4/tensors-0.safetensors"
    whole = path.read_bytes()
    other = (folder / "step-2/tensors-0.safetensors").read_bytes()
    for content in (whole[:-1] + bytes([whole[-1] ^ 1]), other):
        assert len(content) == len(whole) and content != whole
        path.write_bytes(content)
        ran = run("checkpoint", "convert", folder, "--to", tmp_path / "hf")
        assert ran.code == 1 and "was changed" in ran.stderr and not (tmp_path / "hf").exists()


def test_convert_writes_what_hugging_face_reads(run: Runner, folder: Path, tmp_path: Path) -> None:
    ran = run("checkpoint", "convert", folder, "--to", tmp_path / "hf", "--json")
    assert ran.code == 0 and ran.data["num_tensors"] == len(parameters(4))
    model, found = load_hugging_face(tmp_path / "hf")
    assert model.digest == MODEL.digest
    assert all(torch.equal(value, found[name]) for name, value in parameters(4).items())


def test_convert_writes_one_file_of_our_names(run: Runner, folder: Path, tmp_path: Path) -> None:
    options = ("--format", "safetensors", "--dtype", "bfloat16")
    assert run("checkpoint", "convert", folder / "step-2", "--to", tmp_path / "plain", *options).code == 0
    found = load_file(tmp_path / "plain/model.safetensors")
    assert found.keys() == parameters(2).keys()
    assert all(torch.equal(value.bfloat16(), found[name]) for name, value in parameters(2).items())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("inspect", "{tmp}"), "has no checkpoint"),
        (("verify", "{tmp}/nothing"), "has no checkpoint"),
        (("convert", "{runs}", "--to", "{runs}"), "is there already"),
        (("convert", "{runs}", "--to", "{tmp}/hf", "--format", "hugging_fase"), "hugging_face"),
        (("convert", "{runs}", "--to", "{tmp}/hf", "--dtype", "float31"), "float32"),
        (("convert", "{runs}", "--to", "{tmp}/hf", "--tokenizer", "{tmp}/no"), "is no folder"),
        (("convert", "{runs}", "--to", "{tmp}/hf", "--tokenizer", "{tmp}"), "has no tokenizer"),
    ],
)
def test_mistakes_are_told(
    run: Runner, folder: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    ran = run("checkpoint", *(word.format(runs=folder, tmp=tmp_path) for word in words))
    assert ran.code == 2 and said in ran.stderr.replace("\n", "") and ran.stdout == ""
