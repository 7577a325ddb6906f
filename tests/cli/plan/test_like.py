"""`plan --like`: today's prediction, the better plan, the change in the file's words; the file; the mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import Ran, Runner
from tests.covering import always
from tests.interop.todays_file import DEEPSPEED, MEGATRON, TORCHTITAN

from meshwright.interop import Given, import_plan
from meshwright.interop.exported import canonical
from meshwright.specs import Plan, load_model

FEW = ("--fix", "pp=1,cp=1,microbatch_size=1,sharding_degree=0,recompute=none")
JOB = {
    "megatron": ("train.sh", MEGATRON),
    "torchtitan": ("train.toml", TORCHTITAN),
    "deepspeed": ("ds.json", DEEPSPEED),
}
PLACE = {
    "megatron": ("H100",),
    "torchtitan": ("8xH100",),
    "deepspeed": ("llama-3.1-8b", "8xH100", "--seq", 4096),
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with the three files."""
    for name, text in JOB.values():
        (tmp_path / name).write_text(text)
    return tmp_path


def like(run: Runner, job: Path, form: str, *more: object) -> Ran:
    """The command on a file of a program, in a small space."""
    return run("plan", *PLACE[form], "--like", job / JOB[form][0], "--from", form, *FEW, *more)


@pytest.mark.parametrize("form", always([*JOB], {0}))
def test_today_comes_first_then_the_better_plan_and_the_change(run: Runner, job: Path, form: str) -> None:
    target = job / f"better{Path(JOB[form][0]).suffix}"
    ran = like(run, job, form, "--to", form, "-o", target, "--top", 3)
    assert ran.code == 0, ran.stderr
    rows = ran.stdout.splitlines()
    first = [row.split()[0] for row in rows if row[1:2].strip()]
    assert first.index("today") < first.index("1") < first.index("2")
    assert f"in the words of {form}" in ran.stdout and "% faster" in ran.stdout
    changed = {
        "megatron": "--tensor-model-parallel-size 8 -> ",
        "torchtitan": "activation_checkpoint.mode full -> none",
        "deepspeed": "- activation_checkpointing",
    }[form]
    assert changed in ran.stdout
    given = Given(model=load_model("llama-3.1-8b"), sequence_length=4096) if form == "deepspeed" else Given()
    found = import_plan(
        target, form, Given(**{**vars(given), "cluster": "16xH100" if form == "megatron" else "8xH100"})
    )
    assert not found.unknown and "left to you" not in ran.stderr


def test_json_has_today_with_the_keys_of_a_plan_and_the_difference(run: Runner, job: Path) -> None:
    data = like(run, job, "megatron", "--json", "-o", job / "best.toml").data
    today, best = data["today"], data["plans"][0]
    assert set(best) - {"place"} <= set(today) and today["fits"] and today["misfit"] is None
    assert best["step_time_s"] < today["step_time_s"] and not data["is_today_best"]
    changes = {each["option"]: (each["change"], each["before"], each["after"]) for each in data["diff"]}
    assert changes["--recompute-activations"] == ("removed", "", None)
    assert changes["--tensor-model-parallel-size"][:2] == ("changed", "8")
    assert (
        data["exported"].startswith("#!/bin/bash")
        and data["refusals"] == []
        and data["unknown_options"] == []
    )
    (job / "best.sh").write_text(data["exported"])
    again = import_plan(job / "best.sh", "megatron", Given(cluster="16xH100")).plan
    kept = Plan.load(job / "best.toml")
    assert canonical(again.changed(model=kept.model)) == canonical(kept)


def test_the_users_own_script_has_the_change_and_keeps_all_else(run: Runner, job: Path) -> None:
    text = MEGATRON.replace("--lr 3e-4", "--lr 3e-4 --save /kept --adam-beta2 0.95").replace(
        "500000", "12345"
    )
    (job / "train.sh").write_text(text)
    ran = like(run, job, "megatron", "--to", "megatron", "-o", job / "better.sh", "--json")
    assert ran.code == 0
    after = (job / "better.sh").read_text()
    touched = {part for change in ran.data["diff"] for part in (change["option"], change["before"])}
    gone = set(text.split()) - set(after.split())
    assert gone <= {*touched, "export", "CUDA_DEVICE_MAX_CONNECTIONS=1"} and "--sequence-parallel" in gone
    assert "--save /kept --adam-beta2 0.95" in after and "--rotary-base 12345" in after
    assert ran.data["patched"] == (job / "better.sh").read_text() and ran.data["unpatched"] is None


@pytest.mark.slow
def test_a_script_that_cannot_be_changed_in_place_is_written_anew_and_that_is_said(
    run: Runner, job: Path
) -> None:
    (job / "train.sh").write_text(
        MEGATRON.replace("PARALLEL_ARGS=(", "PARALLEL_ARGS=(\n    --tensor-model-parallel-size 4")
    )
    ran = like(run, job, "megatron", "--to", "megatron", "-o", job / "better.sh")
    assert (
        ran.code == 0
        and "could not be changed in place: --tensor-model-parallel-size stands in 2 places" in ran.stderr
    )
    assert "OWN_ARGS" in (job / "better.sh").read_text()


def test_a_vocabulary_that_the_file_does_not_say_is_an_option(run: Runner, job: Path) -> None:
    (job / "train.sh").write_text(MEGATRON.replace(" --vocab-size 128256", ""))
    without = like(run, job, "megatron")
    assert without.code == 2 and "--vocab" in without.stderr
    assert like(run, job, "megatron", "--vocab", "128256").code == 0


def test_what_the_program_cannot_say_is_named(run: Runner, job: Path) -> None:
    place = ("llama-3.1-8b", "8xH100", "--seq", 16384, "--like", job / "ds.json", "--from", "deepspeed")
    ran = run("plan", *place, *FEW, "--fix", "tp=4")
    assert ran.code == 0 and "a faster plan exists that cannot be said there" in ran.stdout
    assert "AutoTP keeps norms and residuals whole" in " ".join(ran.stdout.split())
    # pipelines are beyond DeepSpeed's configuration; only a plan with one is left
    ran = run("plan", *PLACE["deepspeed"], "--like", job / "ds.json", "--from", "deepspeed", "--fix", "pp=2")
    assert ran.code == 2 and "deepspeed cannot say a plan with" in ran.stderr and "pp=2" in ran.stderr


@pytest.mark.slow
def test_the_suffix_toml_is_our_plan_unless_the_program_is_named(run: Runner, job: Path) -> None:
    assert like(run, job, "torchtitan", "-q", "-o", job / "ours.toml").code == 0
    assert Plan.load(job / "ours.toml").dp > 1
    assert like(run, job, "deepspeed", "-q", "-o", job / "result.json").code == 0
    assert "plans" in json.loads((job / "result.json").read_text())
    again = run("plan", "--like", job / "ours.toml", *FEW, "--json")
    assert again.code == 0, again.stderr
    assert again.data["exported"] is None and again.data["is_today_best"] and again.data["diff"] == []


def test_today_that_does_not_fit_is_said(run: Runner, job: Path) -> None:
    text = MEGATRON.replace("--tensor-model-parallel-size 8 --sequence-parallel", "").replace(
        "--use-distributed-optimizer", ""
    )
    (job / "train.sh").write_text(text)
    ran = like(run, job, "megatron", "-o", job / "found.json")
    assert ran.code == 0 and "today's plan does not fit" in ran.stdout and "it has 85.5 GB" in ran.stdout
    assert json.loads((job / "found.json").read_text())["today"]["fits"] is False


def test_options_that_were_not_understood_are_shown(run: Runner, job: Path) -> None:
    (job / "train.sh").write_text(MEGATRON.replace("--bf16", "--bf16 --cpu-offloading-num-layers 4"))
    assert "NOT understood" in like(run, job, "megatron").stdout


@pytest.mark.slow
def test_variables_are_set_from_outside(run: Runner, job: Path) -> None:
    ran = like(run, job, "megatron", "--set", "NNODES=1", "--json")
    assert ran.code == 0 and "num_devices = 8" in ran.data["today"]["plan"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--like", "train.sh", "--from", "megatron"), "meshwright plan H100 --like"),
        (("H100", "--like", "train.sh"), "add --from"),
        (("H100", "--like", "train.sh", "--from", "megatorn"), "megatron"),
        (("8xH100", "--like", "train.sh", "--from", "megatron"), "starts 16 processes"),
        (
            ("H100", "--like", "train.sh", "--from", "megatron", "--seq", 8192),
            "--seq 8192 takes the place of 4096",
        ),
        (("H100", "--like", "train.sh", "--from", "megatron", "--global-batch", 8), "takes the place of 64"),
        (
            ("8xH100", "--like", "train.toml", "--from", "torchtitan", "--global-batch", 8),
            "takes the place of 32",
        ),
        (("llama-3.1-70b", "H100", "--like", "train.sh", "--from", "megatron"), "train.sh says 32"),
        (
            ("H100", "--like", "train.sh", "--from", "megatron", "--fix", "dtype=float16"),
            "leave dtype out of --fix",
        ),
        (("H100", "--like", "train.sh", "--from", "megatron", "--to", "torchtitan"), "meshwright export"),
        (("8xH100", "--like", "ds.json", "--from", "deepspeed"), "add MODEL before CLUSTER"),
        (("H100", "--like", "none.sh", "--from", "megatron"), "cannot be read"),
        (("8xH100", "--like", "train.toml", "--from", "torchtitan", "--fix", "sharding=zero1"), "cannot say"),
        (("gpt2", "4xH100", "--global-batch", 16, "--seq", 1024, "--from", "megatron"), "belong to --like"),
        (("gpt2", "--global-batch", 16), "CLUSTER, --seq not given"),
        (("2xcpu", "--like", "train.sh", "--from", "megatron"), "add CLUSTER with the size"),
    ],
)
def test_mistakes_get_one_message(
    run: Runner, job: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], words: str
) -> None:
    monkeypatch.chdir(job)
    ran = run("plan", *arguments)
    assert ran.code == 2 and words in ran.stderr.replace("\n", " "), ran.stderr
    assert ran.stdout == "" and "Traceback" not in ran.stderr


@pytest.mark.slow
def test_what_today_costs_stands_beside_what_the_better_plan_does(run: Runner, job: Path) -> None:
    money = (
        "--price",
        2.5,
        "--tokens",
        "100B",
        "--mtbf",
        "50000h",
        "--checkpoint",
        "60s",
        "--restart",
        "10min",
    )
    shown = like(run, job, "megatron", *money, "-o", job / "found.json").stdout
    data = json.loads((job / "found.json").read_text())
    today, best = data["today"], data["plans"][0]
    # all devices are paid by the hour: 2.5 USD of each
    hours = today["step_time_s"] / (64 * 4096) * 1e9 / 3600
    assert today["usd_per_billion_tokens"] == pytest.approx(16 * 2.5 * hours)
    for key in ("usd_per_billion_tokens", "kwh_per_billion_tokens", "time_to_tokens_s"):
        assert best[key] < today[key]
    rows = [row.split()[0] for row in shown.partition("USD/B tokens")[2].splitlines() if row.strip()]
    assert rows.index("today") < rows.index("1") and "100 G tokens" in shown
