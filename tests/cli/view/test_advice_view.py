"""The advice of `check` and the hardware line of `plan`: what scripts read, what people see, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Runner

from meshwright.specs import Cluster, Plan, Workload, load_model

MODEL = ("llama-3.1-8b", "2x8xH100", "--global-batch", 64, "--seq", 8192)


@pytest.fixture
def gpu_plan(tmp_path: Path) -> Path:
    """A plan on GPUs that fits and leaves links idle."""
    path = tmp_path / "gpus.toml"
    options: dict[str, Any] = {"tp": 4, "sharding": "zero1", "dtype": "bfloat16", "master_dtype": "float32"}
    Plan.of(load_model("llama-3.1-8b"), Cluster("8xMI300X"), Workload(64, 4096), **options).save(path)
    return path


def test_check_advises_about_a_plan_on_gpus(run: Runner, gpu_plan: Path, tmp_path: Path) -> None:
    ran = run("check", gpu_plan, "-o", tmp_path / "found.json")
    data = json.loads((tmp_path / "found.json").read_text())
    found = {each["kind"]: each for each in data["advice"]}
    assert data["accepted"] and {"memory", "microbatch", "sequence", "links"} <= set(found)
    assert found["links"]["is_waste"] and found["links"]["numbers"]["tp"] == 4
    assert found["memory"]["numbers"]["free_bytes"] == data["capacity_bytes"] - max(data["peak_bytes"])
    gains = [each["gain"] for each in data["hardware"]]
    assert gains == sorted(gains, reverse=True) and len({each["name"] for each in data["hardware"]}) >= 4
    shown = " ".join(ran.stdout.split())
    assert found["links"]["sentence"] in shown and data["hardware"][0]["name"] in shown


def test_what_does_not_fit_gets_advice_and_no_hardware(run: Runner, gpu_plan: Path) -> None:
    ran = run("check", gpu_plan, "--memory", "20GB", "--json")
    assert ran.code == 3 and not ran.data["fits"] and ran.data["hardware"] == []
    assert "too much" in ran.data["advice"][0]["sentence"]


def test_a_format_without_a_price_is_proven_and_says_why(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    plan = Plan.of(load_model("gpt2"), Cluster("2xV100"), Workload(4, 256), dtype="bfloat16")
    plan.save(path)
    data = run("check", path, "--json").data
    assert data["accepted"] and data["advice"] and data["hardware"] == []
    assert "no peak rate for bfloat16" in data["unpriced"]
    assert "no gains by hardware" in run("check", path).stdout


def test_processes_on_cpus_get_none(run: Runner, plan_file: Path) -> None:
    data = run("check", plan_file, "--json").data
    assert data["advice"] == [] and data["hardware"] == []
    assert "advice" not in run("check", plan_file).stdout


@pytest.mark.slow
def test_a_model_on_a_cluster_is_checked_by_its_fastest_plan(run: Runner) -> None:
    data = run("check", *MODEL, "--fix", "tp=8,token_parts=1", "--json").data
    assert data["accepted"] and "tp=8" in data["label"]
    planned = run("plan", *MODEL, "--fix", "tp=8,token_parts=1", "--json").data
    assert planned["plans"][0]["description"] == data["label"]
    first = data["hardware"][0]
    assert planned["hardware_change"] == first
    # changes are priced composed, of whole microbatches, as the plan beside its step in segments
    composed_s = planned["plans"][0]["composed_step_time_s"]
    assert composed_s == pytest.approx(first["step_time_s"] * (1 + first["gain"]))
    assert planned["plans"][0]["step_time_s"] == pytest.approx(composed_s, rel=0.001)


def test_less_memory_takes_another_plan(run: Runner) -> None:
    data = run(
        "check", *MODEL, "--fix", "tp=8,token_parts=1,sharding_degree=0", "--memory", "30GB", "--json"
    ).data
    assert data["fits"] and max(data["peak_bytes"]) <= data["capacity_bytes"] == 30e9


def test_plan_says_which_hardware_would_help(run: Runner) -> None:
    shown = " ".join(
        run("plan", *MODEL, "--fix", "tp=8,token_parts=1,sharding_degree=0", "--top", 1).stdout.split()
    )
    assert "the change of hardware that would help most: twice " in shown


def test_a_model_that_fits_nowhere_is_the_honest_no(run: Runner) -> None:
    ran = run("check", "llama-3.1-405b", "8xA100-40", "--global-batch", 8, "--seq", 4096, "--json")
    assert ran.code == 3 and ran.data["fits"] is False and ran.data["error"]["kind"] == "OutOfMemoryError"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("llama-3.1-8b", "8xH100"), "--global-batch"),
        (("llama-3.1-8b", "8xH100", "--global-batch", 8), "--seq"),
        (("llama-3.1-8b", "--global-batch", 8, "--seq", 512), "a cluster"),
        (("llama-3.1-8b", "8xH100", "--cluster", "8xH200"), "one cluster"),
        ((*MODEL, "--stages", 4), "stages"),
    ],
)
def test_mistakes_get_one_message(run: Runner, arguments: tuple[object, ...], words: str) -> None:
    ran = run("check", *arguments)
    assert ran.code == 2 and words in ran.stderr and "Traceback" not in ran.stderr
