"""`export`: the text alone on stdout, files by suffix, one list of what cannot be said."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Runner

from meshwright.interop.exported import canonical
from meshwright.specs import Cluster, Plan, Workload, load_model

CHOICES: dict[str, dict[str, Any]] = {
    "megatron": {"tp": 2, "pp": 2, "sharding": "zero1", "overlap": ("reduce", "gather"), "software": "fused"},
    "torchtitan": {"sharding": "zero3", "overlap": ("reduce", "gather"), "software": "compiled"},
    "deepspeed": {"sharding": "zero2", "overlap": ("reduce",), "software": "eager"},
}
SUFFIXES = {"megatron": ".sh", "torchtitan": ".toml", "deepspeed": ".json"}


def write_plan(path: Path, form: str, **more: Any) -> Plan:
    formats = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
    fields = {**formats, **CHOICES[form], **more}
    plan = Plan.of(load_model("llama-3.1-8b"), Cluster("2x8xH100"), Workload(64, 4096), **fields)
    plan.save(path)
    return plan


@pytest.mark.parametrize("form", CHOICES)
def test_a_plan_goes_out_and_comes_back(run: Runner, tmp_path: Path, form: str) -> None:
    plan = write_plan(tmp_path / "plan.toml", form)
    target = tmp_path / f"job{SUFFIXES[form]}"
    ran = run("export", tmp_path / "plan.toml", "--to", form, "-o", target)
    assert ran.code == 0 and "left to you" in ran.stderr and "left to you" not in ran.stdout
    assert (
        ran.stdout == "" and run("export", tmp_path / "plan.toml", "--to", form).stdout == target.read_text()
    )
    more = ("--model", "llama-3.1-8b", "--seq", 4096) if form != "torchtitan" else ()
    again = tmp_path / "again.toml"
    read = run("import", target, "--from", form, "--cluster", "2x8xH100", *more, "-o", again)
    assert read.code == 0, read.stderr
    assert canonical(Plan.load(again)) == canonical(plan)


def test_json_holds_the_text(run: Runner, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.toml", "torchtitan")
    data = run("export", tmp_path / "plan.toml", "--to", "torchtitan", "--json").data
    assert data["format"] == "torchtitan" and data["plan_digest"] in data["text"]
    assert tomllib.loads(data["text"])["model"] == {"name": "llama3", "flavor": "8B"}


def test_long_lines_are_not_broken(run: Runner, tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.toml", "megatron")
    odd = [block for block in range(plan.model.num_layers) if block % 2]
    model = load_model("mixtral-8x7b").changed(dense_layers=odd)
    plan.changed(model=model, sequence_parallel=True).save(tmp_path / "plan.toml")
    line = next(line for line in run("export", tmp_path / "plan.toml", "--to", "megatron").stdout.splitlines()
                if "moe-layer-freq" in line)  # fmt: skip
    assert len(line) > 200 and line.endswith(")'")


def test_what_cannot_be_said_is_one_list(run: Runner, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.toml", "torchtitan", vocabulary="one_barrier", recompute="selective")
    ran = run("export", tmp_path / "plan.toml", "--to", "torchtitan", "-o", tmp_path / "job.toml")
    assert ran.code == 2 and ran.stdout == "" and not (tmp_path / "job.toml").exists()
    for words in ("ExportError", "2 choices", 'vocabulary = "one_barrier"', 'recompute = "selective"'):
        assert words in ran.stderr
    told = run("export", tmp_path / "plan.toml", "--to", "torchtitan", "--json").data["error"]
    assert told["exit_code"] == 2 and told["kind"] == "ExportError"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("{plan}", "--to", "megatrom"), "megatron"),
        (("{plan}", "--to", "megatron", "--cluster", "8xH100"), "16 devices"),
        (("{plan}", "--to", "megatron", "--cluster", "2x8xH10"), "H100"),
        (("{plan}", "--to", "megatron", "-o", "job.toml"), ".sh"),
        (("nothing.toml", "--to", "megatron"), "nothing.toml"),
    ],
)
def test_a_mistake_is_told(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path / "plan.toml", "megatron")
    ran = run("export", *(text.format(plan=tmp_path / "plan.toml") for text in arguments))
    assert ran.code == 2 and word in ran.stderr.replace("\n", " ") and "Traceback" not in ran.stderr


def test_a_text_file_is_the_same_text(run: Runner, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.toml", "deepspeed")
    ran = run("export", tmp_path / "plan.toml", "--to", "deepspeed", "-o", tmp_path / "job.txt", "-q")
    shown = run("export", tmp_path / "plan.toml", "--to", "deepspeed").stdout
    assert json.loads((tmp_path / "job.txt").read_text()) == json.loads(shown)
    assert ran.stdout == ran.stderr == ""
