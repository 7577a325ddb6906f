"""What people get wrong, one clear message each and never a traceback (the death of a rank is in tests/executor)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Runner

HEAD = "meshwright-program 1   axes pp=2   microbatches 2\n"
FIRST = "0: 0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0B0 0B1\n"
SECOND = "1: 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1\n"
PROGRAMS = {
    # both wait for what the other sends after it
    "a cycle": (
        FIRST.replace("0SEND_F0 0RECV_B0 0F1", "0RECV_B0{stream=one} 0SEND_F0{stream=one} 0F1"),
        SECOND,
        ("deadlock", "device 0", "<-- here"),
    ),
    "a mismatched send": (FIRST, SECOND.replace("1SEND_B0 ", ""), ("0RECV_B0", "has no SEND", "<-- here")),
    "a lost backward": (FIRST, SECOND.replace("1B1 1SEND_B1", "1SEND_B1"), ("1SEND_B1", "gradient")),
    "a backward before its forward": (
        FIRST,
        SECOND.replace("1F1 1B1", "1B1 1F1"),
        ("1B1 runs before 1F1", "<-- here"),
    ),
    "a microbatch too many": (FIRST.replace("0F1", "0F7"), SECOND, ("0F7", "2 microbatches")),
    "a word that is no instruction": (FIRST.replace("0F1", "F"), SECOND, ("'F'", "0F3")),
    "a list that is missing": (FIRST, "", ("lists [0]", "0 to 1")),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_cannot_run_is_refused(run: Runner, tmp_path: Path, name: str) -> None:
    first, second, words = PROGRAMS[name]
    path = tmp_path / "program.txt"
    path.write_text(HEAD + first + second)
    result = run("check", path)
    said = result.stdout + result.stderr
    assert result.code == 3, said
    assert all(word in said for word in words), said
    assert "Traceback" not in said


def test_the_same_program_unharmed_is_accepted(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(HEAD + FIRST + SECOND)
    assert run("check", path).code == 0


def test_a_config_without_a_field_names_file_and_field(run: Runner, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 256,
        "intermediate_size": 128,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    result = run("show", path)
    assert result.code == 2
    assert "num_hidden_layers" in result.stderr and "config.json" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema = [", ("plan.toml",)),
        ("", ("plan.toml",)),
        ('schema = 999\n[plan]\nschedule = "1f1b"\n', ("999",)),
    ],
    ids=["no TOML", "empty", "of a later version"],
)
def test_a_corrupt_plan_is_one_message(
    run: Runner, tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    result = run("check", path)
    assert result.code == 2
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr and len(result.stderr.splitlines()) < 6


def test_a_plan_that_does_not_fit_names_what_holds_most(run: Runner, tmp_path: Path) -> None:
    from meshwright.specs import Cluster, Plan, Workload, load_model

    plan = Plan.of(load_model("llama-3.1-405b"), Cluster("8xH100"), Workload(8, 8192), pp=8, dtype="bfloat16")
    plan.save(tmp_path / "plan.toml")
    result = run("check", tmp_path / "plan.toml", "--cluster", "8xH100")
    said = result.stdout + result.stderr
    assert result.code == 3
    assert "GB" in said and "optimizer" in said, said


@pytest.mark.parametrize("verb", ["check", "simulate"])
def test_a_model_alone_is_told_what_it_lacks(run: Runner, verb: str) -> None:
    ran = run(verb, "gpt2")
    assert ran.code == 2 and "gpt2 CLUSTER --global-batch N" in ran.stderr and ran.stdout == ""


def test_a_cluster_of_two_kinds_that_cannot_be_says_why(run: Runner) -> None:
    result = run("show", "4xH100+2xL40S")
    assert result.code == 2 and "nodes of 4, 2 devices" in result.stderr
    assert "no thing named" not in result.stderr
