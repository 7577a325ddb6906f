"""`import`, and `compare` and `calibrate` with the log of a run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.running import Ran, Runner
from tests.interop.recipe import GROK_1, LLAMA_70B, TITAN_8B

from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster, Plan
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.plan.prediction import Basis, Prediction
from meshwright.specs.plan.utilisation import StepFlops

NOISE = (0.994, 1.003, 1.0, 0.998, 1.006)  # of steps around their median


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "pretrain.sh"
    path.write_text(GROK_1.replace("--bf16", "--bf16 --own-option 3 --lr 1e-4"))
    return path


@pytest.fixture
def imported_plan(run: Runner, tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(TITAN_8B)
    path = tmp_path / "imported.toml"
    ran = run("import", tmp_path / "job.toml", "--from", "torchtitan", "--cluster", "4x8xH200", "-o", path)
    assert ran.code == 0, ran.stderr
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    lines = [
        f"iteration {n} | elapsed time per iteration (ms): {1500 + n} | global batch size: 64 |"
        for n in range(20)
    ]
    path.write_text("\n".join(lines))
    return path


def predicting(monkeypatch: pytest.MonkeyPatch, seconds: float, basis: Basis = "interpolated") -> None:
    """Predictions of `seconds`, whatever the plan: what is tested here is what is made of them."""
    estimate = SimpleNamespace(
        step=Prediction.within(seconds, 0.1, basis),
        parts={"matmul": 0.6 * seconds, "network": 0.3 * seconds},
        flops=StepFlops(4e14, 1e15),
        factor=1.0,
    )
    module = importlib.import_module(
        "meshwright.prediction.predicted"
    )  # the room has a function of that name
    monkeypatch.setattr(module, "predict", lambda plan, cluster, **options: estimate)


def import_script(run: Runner, script: Path, *more: object) -> Ran:
    return run("import", script, "--from", "megatron", "--cluster", "64x8xH100", *more)


def test_import_writes_the_plan_and_lists_every_option(run: Runner, script: Path, tmp_path: Path) -> None:
    ran = import_script(run, script, "--json", "-o", tmp_path / "plan.toml")
    assert ran.code == 0, ran.stderr
    assert {option["name"] for option in ran.data["unknown"]} >= {
        "--own-option",
        "--moe-expert-capacity-factor",
    }
    assert {option["name"] for option in ran.data["irrelevant"]} == {"--lr", "--moe-aux-loss-coeff"}
    plan = Plan.load(tmp_path / "plan.toml")
    assert (plan.pp, plan.tp, plan.cp, plan.ep, plan.num_chunks) == (8, 4, 2, 8, 8)
    assert ran.data["model_digest"] == plan.model_digest


def test_people_see_what_was_not_understood(run: Runner, script: Path) -> None:
    shown = import_script(run, script).stdout
    assert "NOT understood" in shown and "--own-option" in shown and "--lr" in shown


def test_import_reads_deepspeed_with_a_model(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}))
    arguments = (
        "import",
        path,
        "--from",
        "deepspeed",
        "--model",
        "llama-3.2-1b",
        "--cluster",
        "H100",
        "--gpus",
        16,
    )
    ran = run(*arguments, "--seq", 2048, "--json")
    assert ran.code == 0 and ran.data["sharding"] == "zero3" and ran.data["global_batch"] == 16
    assert run(*arguments).code == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--from", "megatrom", "--cluster", "64x8xH100"), "megatron"),
        (("--from", "megatron"), "--cluster"),
        (("--from", "torchtitan", "--cluster", "H100"), "TOML"),
        (("--from", "megatron", "--cluster", "64x8xH100", "--set", "TP"), "NAME=VALUE"),
    ],
)
def test_a_mistake_is_told(run: Runner, script: Path, arguments: tuple[str, ...], word: str) -> None:
    ran = run("import", script, *arguments)
    assert ran.code == 2 and word in ran.stderr.replace("\n", " ") and "Traceback" not in ran.stderr


def test_compare_a_plan_with_a_log(
    run: Runner, imported_plan: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch, 1.4)
    data: dict[str, Any] = run("compare", imported_plan, log, "--json").data
    assert data["predicted"]["mfu"] == pytest.approx(0.4 / 1.4)
    assert data["measured"]["mfu"] == pytest.approx(0.4 / 1.5105, rel=1e-3)
    assert data["measured"]["source"] == "megatron" and data["measured"]["num_warm_up"] == 2
    assert data["ratio"] == pytest.approx(1.5105 / 1.4, rel=1e-3) and data["is_inside"]
    assert [part["name"] for part in data["parts"]] == ["matmul", "network"]
    shown = run("compare", imported_plan, log)
    assert (
        shown.code == 0
        and "inside the interval" in shown.stdout
        and "fit on this run would move" in shown.stdout
    )


def test_calibrate_from_a_log(
    run: Runner, imported_plan: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch, 1.4)
    profile = tmp_path / "my.profile.json"
    ran = run("calibrate", "--from-log", log, "--plan", imported_plan, "-o", profile, "--json")
    assert ran.code == 0 and ran.data["runs"][0]["ratio"] == pytest.approx(1.5105 / 1.4, rel=1e-3)
    assert [each["kind"] for each in ran.data["factors"]][:2] == ["everything", "products"] and ran.data[
        "advice"
    ]
    assert sum(ran.data["readings"].values()) == pytest.approx(1.0)
    assert Profile.load(profile).runs[0].parts == pytest.approx({"matmul": 0.84, "network": 0.42})
    shown = run("calibrate", "--from-log", log, "--plan", imported_plan).stdout
    assert "before" in shown and "after" in shown and "--profile FILE" in shown


def write_log(path: Path, form: str, plan: Plan, step_s: float) -> Path:
    """A log of 30 steps or 20 means of ten around `step_s`, the first ones slow."""
    lines = ["> building the model ..."]
    if form == "megatron":
        for number in range(1, 31):
            seconds = 3 * step_s if number < 3 else step_s * NOISE[number % 5]
            lines += [
                f" iteration {number:8d}/      30 | elapsed time per iteration (ms): {1e3 * seconds:.1f} | "
                f"global batch size: {plan.workload.global_batch:5d} | lm loss: 9.1E+00 |",
            ]
        lines += [
            "[Rank 0] memory (MB) | allocated: 40000.0 | max allocated: 60000.0 | max reserved: 66000.0"
        ]
    else:
        tokens = plan.workload.tokens_per_step / plan.num_devices
        for number in (1, *range(10, 201, 10)):
            seconds = 30 * step_s if number == 1 else step_s * NOISE[number // 10 % 5]
            lines += [
                f"[rank0]:[titan] 2025-06-13 20:00:00,000 - root - INFO - step: {number:2}  loss:  9.4  "
                f"memory: 47.96GiB(34.30%)  tps: {round(tokens / seconds):,}  tflops: 633.10  mfu: 64.01%"
            ]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(params=["megatron", "torchtitan"])
def pasted(request: pytest.FixtureRequest, run: Runner, tmp_path: Path) -> tuple[str, Path]:
    """What people have today: a configuration, imported; and the words of its log."""
    text, cluster = {"megatron": (LLAMA_70B, "8x8xH100"), "torchtitan": (TITAN_8B, "4x8xH200")}[request.param]
    (tmp_path / "pasted").write_text(text)
    path = tmp_path / "pasted.toml"
    ran = run("import", tmp_path / "pasted", "--from", request.param, "--cluster", cluster, "-o", path)
    assert ran.code == 0, ran.stderr
    return request.param, path


def test_from_configuration_and_log_to_a_calibrated_prediction(
    run: Runner, pasted: tuple[str, Path], tmp_path: Path
) -> None:
    form, path = pasted
    plan = Plan.load(path)
    predicted_s = predict(plan, Cluster(plan.cluster)).step.value
    log = write_log(tmp_path / "run.log", form, plan, 1.01 * predicted_s)
    found = run("compare", path, log, "--json").data
    assert found["predicted_s"] == pytest.approx(predicted_s) and found["measured"]["source"] == form
    assert found["ratio"] == pytest.approx(1.01, rel=1e-3) and found["is_inside"]
    inside = [part["name"] for part in found["parts"] if not part["is_beside"]]
    assert found["binding"] == inside[0] and found["predicted_peak_bytes"] > 0 and not found["doubts"]

    shown = run("compare", path, log).stdout
    for words in (
        "inside the interval",
        "what binds the step",
        "fit on this run would move",
        "peak",
    ):
        assert words in shown
    assert "alone explains it" not in shown and "CAUTION" not in shown

    profile = tmp_path / "my.profile.json"
    assert run("calibrate", "--from-log", log, "--plan", path, "-o", profile).code == 0
    moved = run("compare", path, log, "--profile", profile, "--json").data
    assert (
        moved["predicted_s"] == pytest.approx(moved["measured"]["median_s"], rel=0.01) and moved["is_inside"]
    )
    assert moved["high_s"] - moved["low_s"] < found["high_s"] - found["low_s"]


def test_a_run_that_is_not_what_was_predicted(run: Runner, pasted: tuple[str, Path], tmp_path: Path) -> None:
    form, path = pasted
    plan = Plan.load(path)
    predicted_s = predict(plan, Cluster(plan.cluster)).step.value
    log = write_log(tmp_path / "run.log", form, plan, 1.5 * predicted_s)
    found = run("compare", path, log, "--json").data
    assert found["ratio"] == pytest.approx(1.5, rel=1e-3) and not found["is_inside"]
    largest = found["parts"][0]
    assert largest["needed"] == pytest.approx(1 + 0.5 * predicted_s / largest["seconds"], rel=1e-2)
    shown = run("compare", path, log).stdout
    assert "OUTSIDE the interval" in shown and "alone explains it" in shown


def test_a_log_of_another_job_is_doubted(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(LLAMA_70B.replace("--global-batch-size 128", "--global-batch-size 256"))
    path = tmp_path / "plan.toml"
    run("import", tmp_path / "job.sh", "--from", "megatron", "--cluster", "8x8xH100", "-o", path)
    plan = Plan.load(path)
    log = write_log(tmp_path / "run.log", "megatron", plan, 15.0)
    log.write_text(log.read_text().replace("size:   256", "size:   128"))
    assert "CAUTION: the log's global batch is 128" in run("compare", path, log).stdout


@pytest.mark.parametrize("device", ["MI250X", "L40S", "V100"])
@pytest.mark.parametrize("form", ["megatron", "torchtitan", "deepspeed"])
def test_a_device_never_measured_is_imported_and_predicted_only_when_asked(
    run: Runner, log: Path, tmp_path: Path, form: str, device: str
) -> None:
    half = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}
    text = {
        "megatron": LLAMA_70B.replace("--bf16", "--fp16").replace("--grad-reduce-in-bf16", ""),
        "torchtitan": TITAN_8B.replace('["quantize.linear.float8"]', "[]").replace(
            "[training]", '[training]\nmixed_precision_param = "float16"'
        ),
        "deepspeed": json.dumps(half),
    }[form]
    (tmp_path / "job").write_text(text)
    path = tmp_path / "plan.toml"
    more = ("--model", "llama-3.2-1b", "--seq", 2048) if form == "deepspeed" else ()
    ran = run("import", tmp_path / "job", "--from", form, "--cluster", f"8x8x{device}", *more, "-o", path)
    assert ran.code == 0, ran.stderr
    refused = run("compare", path, log)
    assert refused.code == 2 and device in refused.stderr and "--extrapolate" in refused.stderr
    found = run("compare", path, log, "--extrapolate", "--json").data
    assert found["basis"] == "never seen" and found["low_s"] < 0.9 * found["predicted_s"]


def test_calibrate_from_a_trace(
    run: Runner, imported_plan: Path, trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch, 1.0)
    ran = run("calibrate", "--from-trace", trace_file, "--plan", imported_plan, "--json")
    assert ran.code == 0 and ran.data["runs"][0]["name"] == trace_file.name


def test_what_was_never_seen_is_refused_unless_asked_for(run: Runner, imported_plan: Path, log: Path) -> None:
    arguments = ("compare", imported_plan, log, "--cluster", "4x8xL40S")
    refused = run(*arguments)
    assert refused.code == 2 and "--extrapolate" in refused.stderr
    assert run(*arguments, "--extrapolate", "--json").data["basis"] == "never seen"


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "{trace}", "{trace}", "--cluster", "8xH100"),
        ("calibrate", "--from-log", "{log}"),
        ("calibrate", "--plan", "{plan}"),
        ("calibrate", "--from-log", "{log}", "--plan", "{plan}", "--plan", "{plan}"),
        ("compare", "{plan}", "{plan}"),
    ],
)
def test_a_mistake_beside_a_log_is_told(
    run: Runner, arguments: tuple[str, ...], imported_plan: Path, log: Path, trace_file: Path
) -> None:
    files = {"plan": imported_plan, "log": log, "trace": trace_file}
    ran = run(*(word.format(**files) for word in arguments))
    assert ran.code == 2 and ran.stderr and "Traceback" not in ran.stderr


def test_a_single_step_is_a_doubtful_log(
    run: Runner, imported_plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch, 1.4)
    (tmp_path / "one.json").write_text('{"step_s": [1.5]}')
    assert "CAUTION: one value" in run("compare", imported_plan, tmp_path / "one.json").stdout
    assert len(run("compare", imported_plan, tmp_path / "one.json", "--json").data["doubts"]) == 1


def test_the_page_beside_a_log_has_the_verdict_and_no_raw_data(
    run: Runner, imported_plan: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch, 1.4)
    assert run("compare", imported_plan, log, "--report", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "inside the interval" in page and "matrix products" in page
    assert "quartiles_s" not in page and "ModelSpec(" not in page


def test_a_log_and_its_plan_the_wrong_way_round(run: Runner, imported_plan: Path, log: Path) -> None:
    ran = run("compare", log, imported_plan)
    assert ran.code == 2 and "compare PLAN LOG" in ran.stderr.replace("\n", " ")
    assert "pickle" not in run("compare", log, log).stderr


@pytest.mark.parametrize(
    ("value", "words"), [("${LAYERS:?}", "--set LAYERS=NUMBER"), ("$(cat layers)", "no command is run")]
)
def test_what_only_a_shell_knows_is_asked_for(run: Runner, tmp_path: Path, value: str, words: str) -> None:
    (tmp_path / "job.sh").write_text(f"pretrain_gpt.py --num-layers {value} --hidden-size 64 --seq-length 16")
    ran = run("import", tmp_path / "job.sh", "--from", "megatron", "--cluster", "8xH100")
    assert ran.code == 2 and words in " ".join(ran.stderr.split())


def test_predict_measure_correct_and_plan_again(run: Runner, tmp_path: Path) -> None:
    """The profile of a log corrects every time that `plan` tells, in the table, beside today's plan, on the page and in
    `simulate`."""
    job = (
        "plan",
        "gpt2",
        "4xH100",
        "--global-batch",
        16,
        "--seq",
        1024,
        "--fix",
        "pp=1,recompute=none,microbatch_size=1",
    )
    path, profile, page = tmp_path / "plan.toml", tmp_path / "my.profile.json", tmp_path / "page.html"
    first = run(*job, "--json", "-o", path).data["plans"]
    log = write_log(tmp_path / "run.log", "megatron", Plan.load(path), 1.25 * first[0]["step_time_s"])
    assert run("calibrate", "--from-log", log, "--plan", path, "-o", profile).code == 0
    again = run(*job, "--profile", profile, "--json", "--report", page).data
    before = {each["description"]: each for each in first}
    assert again["plans"][0]["step_time_s"] == min(each["step_time_s"] for each in again["plans"])
    for each in again["plans"]:
        known = before[each["description"]]
        ratio = each["step_time_s"] / known["step_time_s"]
        assert 1.2 < ratio < 1.26 and each["mfu"] == pytest.approx(known["mfu"] / ratio)
        assert sum(each["parts"].values()) == pytest.approx(ratio * sum(known["parts"].values()))
    assert any("corrected by 1 run of your own" in line for line in again["assumptions"])
    assert "of your own" in page.read_text()
    simulated = run("simulate", path, "--profile", profile, "--json").data
    assert simulated["step"]["value"] == pytest.approx(again["plans"][0]["step_time_s"], rel=1e-6)
    like = run(
        "plan", "--like", path, "--profile", profile, "--fix", "pp=1,microbatch_size=1", "--json", "--top", 1
    ).data
    assert like["today"]["step_time_s"] == pytest.approx(again["plans"][0]["step_time_s"], rel=1e-3)
    refused = run("plan", "gpt2", "4xA100-80", *job[3:], "--profile", profile)
    assert refused.code == 2 and "the profile is of H100" in refused.stderr
    late = run(*job, "--profile", profile, "--solve", "gpus", "--deadline", "1d", "--tokens", "1B")
    assert late.code == 2 and "leave --profile out" in " ".join(late.stderr.split())
