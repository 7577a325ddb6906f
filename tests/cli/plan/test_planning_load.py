"""`meshwright plan --requests`: the contract of --json, the table, and one message for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.running import Runner

from meshwright.specs.routing.expert_placement import ExpertPlacement
from meshwright.specs.routing.routing_file import save_routing
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.workbench.document.opening import open_document

LOAD = "arrived_at_s,prompt_tokens,output_tokens\n" + "".join(
    f"{number / 5},{200 + number},{20 + number % 7}\n" for number in range(40)
)
FIXED = ("--fix", "tp=1,replicas=2,max_batch_tokens=256,max_sequences=32")


@pytest.fixture
def load_file(tmp_path: Path) -> Path:
    """A load of 40 requests, 5 a second."""
    path = tmp_path / "load.csv"
    path.write_text(LOAD, encoding="utf-8")
    return path


def test_json_has_the_layouts_with_their_figures(run: Runner, load_file: Path, tmp_path: Path) -> None:
    """The names that other programs read; what is fixed is simulated alone. A picture and a page are written beside it."""
    svg, page = tmp_path / "load.svg", tmp_path / "load.html"
    ran = run(
        "plan",
        "llama-3.2-1b",
        "2xH100",
        "--requests",
        load_file,
        "--slo",
        "ttft=2s,tpot=100ms",
        *FIXED,
        "--price",
        3,
        "--json",
        "-o",
        svg,
        "--report",
        page,
    )
    assert ran.code == 0, ran.stderr
    assert "good requests a second of each device" in svg.read_text() and "2 x tp1" in svg.read_text()
    assert "kWh/M tokens" in page.read_text()
    (found,) = ran.data["layouts"]
    assert (found["plan"]["tp"], found["plan"]["replicas"], found["plan"]["num_devices"]) == (1, 2, 2)
    assert (found["num_requests"], found["num_finished"]) == (40, 40)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert 0 < found[name]["p50"] <= found[name]["p90"] <= found[name]["p99"]
    assert found["output_tokens_per_s"] > 0 and found["goodput_per_s"] > 0
    assert found["usd_per_million_tokens"] == pytest.approx(6 / 3600 / found["output_tokens_per_s"] * 1e6)
    result = tmp_path / "layouts.json"
    result.write_text(json.dumps(ran.data), encoding="utf-8")
    shown = open_document([result])
    assert [each.value for each in shown.facts[:2]] == ["2 x tp1", "100.0 %"]
    assert "TTFT p99" in shown.text() and "num_prefill" not in shown.text()
    assert ran.data["simulate_s"] > 0 and ran.data["objective"] == {"ttft_s": 2.0, "tpot_s": 0.1}


def test_the_table_says_what_is_good_and_how_far_the_steps_are_off(
    run: Runner, load_file: Path, tmp_path: Path
) -> None:
    """With --explain what it rests on. The best plan is kept, and goes out in a server's own words."""
    kept, script = tmp_path / "serving.toml", tmp_path / "serve.sh"
    ran = run("plan", "llama-3.2-1b", "2xH100", "--requests", load_file, *FIXED, "--explain", "-o", kept)
    assert ran.code == 0 and " in the loops" in ran.stderr and " in the loops" not in ran.stdout, ran.stderr
    for words in (
        "40 requests, good within TTFT 2 s, TPOT 100 ms",
        "2 x tp1",
        "steps are read from tables",
        "enough for 99 % of the requests: 2 devices, as 2 x tp1",
        "log of vLLM",
    ):
        assert words in " ".join(ran.stdout.split()), words
    ran = run("export", kept, "--to", "vllm", "-o", script)
    assert ran.code == 0 and "preset" in ran.stderr and "--data-parallel-size 2" in script.read_text()
    assert "--max-num-batched-tokens 256" in script.read_text() and ran.stdout == ""
    for more, words in (
        (("--to", "megatron"), "ray-serve"),
        (("--to", "vllm", "--cluster", "1xH100"), "1xh100 has 1"),
    ):
        ran = run("export", kept, *more)
        assert ran.code == 2 and words in ran.stderr.lower(), ran.stderr


def test_a_load_comes_as_often_as_it_is_said(run: Runner, load_file: Path) -> None:
    """A quarter of the file, four times as often."""
    job = ("plan", "llama-3.2-1b", "2xH100", "--requests", load_file, *FIXED, "--json")
    slow, fast = run(*job).data["layouts"][0], run(*job, "--rate-factor", 4, "--first", 10).data["layouts"][0]
    assert fast["num_requests"] == 10 and fast["duration_s"] < slow["duration_s"] / 4
    waiting = run(*job, "--clients", 3).data["layouts"][0]
    assert waiting["num_finished"] == 40
    assert waiting["e2e_s"]["mean"] * 40 / waiting["duration_s"] == pytest.approx(3, rel=0.1)
    drawn = run(*job, "--arrivals", "constant(rate_per_s=100)").data["layouts"][0]
    assert drawn["ttft_s"]["p99"] > slow["ttft_s"]["p99"]


USERS = ("plan", "llama-3.2-1b", "4xH100", "--requests", "lengths(prompt=200,output=20,num=60,variation=0.5)")


def test_users_need_no_file_and_the_fewest_devices_are_among_the_plans(run: Runner) -> None:
    """Drawn requests of users who think: one device is enough, and shown, though four plans are quicker."""
    ran = run(*USERS, "--clients", 30, "--think", "2s", "--json")
    assert ran.code == 0, ran.stderr
    found = ran.data["layouts"]
    assert [each["num_finished"] for each in found] == [60] * len(found)
    assert all(each["good_share"] == pytest.approx(1.0) and each["duration_s"] > 2.0 for each in found)
    assert min(each["plan"]["num_devices"] for each in found) == 1


def test_where_no_plan_is_good_the_table_says_so(run: Runner) -> None:
    """With what the plans can do instead of it."""
    ran = run(*USERS, "--clients", 30, "--slo", "ttft=1us", "--fix", "tp=1,replicas=1")
    assert ran.code == 0 and "not enough: at most 0.0 % of the requests are good (tp1)" in " ".join(
        ran.stdout.split()
    )


@pytest.fixture
def routes(tmp_path: Path) -> Path:
    """Of Mixtral's layers: two thirds of the rows go to the first two experts."""
    draw = np.random.default_rng(1)
    tokens = [[(0, 1) if draw.random() < 2 / 3 else (4, 7)] * 32 for _ in range(300)]
    save_routing(RoutingTrace(np.array(tokens), 8, tuple(range(32))), tmp_path / "routes.npz")
    return tmp_path / "routes.npz"


def test_whole_experts_take_as_long_as_a_routing_says(run: Runner, routes: Path) -> None:
    """Two experts of a device of four have two thirds of the rows, 2.7 times the mean; moved apart half as many."""
    apart, other = routes.parent / "apart.experts.json", routes.parent / "other.experts.json"
    slots = np.tile([0, 2, 1, 3, 4, 5, 6, 7], (32, 1))
    ExpertPlacement(slots, 4, tuple(range(32))).save(apart)
    ExpertPlacement(slots, 2, tuple(range(32))).save(other)
    fixed = "tp=4,ep=4,pp=1,replicas=1,max_batch_tokens=4096,max_sequences=32"
    load = ("--requests", "lengths(prompt=4000,output=3,num=8)", "--clients", 2)
    asked = ("plan", "mixtral-8x7b", "1x8xH100", *load, "--fix", fixed)
    routed = (*asked, "--routing", routes)
    ran = [run(*each, "--json") for each in (asked, routed, (*routed, "--expert-placement", apart))]
    assert [each.code for each in ran] == [0] * 3, ran[-1].stderr
    told = [next(line for line in each.data["assumptions"] if "whole experts" in line) for each in ran]
    assert "alike" in told[0] and told[1] != told[2]
    loads = [float(line.split("busiest has ")[1].split()[0]) for line in told[1:]]
    assert loads[0] == pytest.approx(2.67, abs=0.3) and loads[1] == pytest.approx(loads[0] / 2, rel=0.02)
    seconds = [each.data["layouts"][0]["e2e_s"]["mean"] for each in ran]
    assert seconds[0] < seconds[1] and seconds[2] < seconds[1]
    refused = run(*routed, "--expert-placement", other)
    assert refused.code == 2 and "is for 2 devices" in refused.stderr.replace("\n", " ")
    refused = run(*asked, "--expert-placement", apart)
    assert refused.code == 2 and "--expert-placement without --routing" in refused.stderr
    refused = run(*routed, "--expert-placement", "eplb(copies=4)")
    assert refused.code == 2 and "copies of experts" in refused.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--think", "2s"), "--think without --clients"),
        (("--fix", "tpp=2"), "dtype"),
        (("--global-batch", 8), "--requests with global_batch"),
        (("--objective", "cost"), "--requests with objective cost"),
        (("--pareto",), "--solve or --pareto"),
        (("--slo", "tpot"), "ttft=2s,tpot=100ms"),
        (("--fix", "cp=2"), "has no cp"),
        (("--fix", "router=best"), "least_loaded"),
        (("--fix", "dtype=int8"), "float8"),
        (("--arrivals", "poisson(rate_per_s=2)", "--rate-factor", 2), "one of them"),
        (("--clients", 2, "--rate-factor", 2), "clients, or times"),
        (("--clients", 2, "--fix", "num_prefill=1,replicas=2,tp=1"), "num_prefill with clients"),
        (("--planner", "nobody"), "serving_planner"),
        (("-o", "plans.csv"), ".svg"),
    ],
)
def test_what_is_not_of_serving_is_refused(
    run: Runner, load_file: Path, more: tuple[object, ...], said: str
) -> None:
    """By its name, with exit code 2."""
    ran = run("plan", "llama-3.2-1b", "2xH100", "--requests", load_file, *more)
    assert ran.code == 2 and said in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("requests", "more", "said"),
    [
        ("lengths(prompt=5)", (), "nobody says when"),
        ("lengths(promt=5)", ("--clients", 2), "prompt"),
        ("lengths(num=5)", ("--clients", 9), "9 clients for 5 requests"),
        ("none.csv", (), "no such file or directory; allowed: a file .csv"),
    ],
)
def test_requests_that_are_none_are_refused(
    run: Runner, requests: str, more: tuple[object, ...], said: str
) -> None:
    """With what would do."""
    ran = run("plan", "llama-3.2-1b", "2xH100", "--requests", requests, *more)
    assert ran.code == 2 and said in " ".join(ran.stderr.split())


def test_a_bad_line_and_a_model_that_fits_nowhere_are_told(run: Runner, load_file: Path) -> None:
    """Line and column, exit 2; what takes the memory, exit 3."""
    ran = run("plan", "llama-3.1-70b", "1xH100", "--requests", load_file)
    assert ran.code == 3 and "weights" in ran.stderr
    load_file.write_text(LOAD.replace(",205,", ",many,"), encoding="utf-8")
    ran = run("plan", "llama-3.2-1b", "2xH100", "--requests", load_file)
    assert ran.code == 2 and "line 7, column 'prompt_tokens': 'many'" in ran.stderr
    assert run("plan", "llama-3.2-1b", "2xH100", "--first", 3).code == 2
