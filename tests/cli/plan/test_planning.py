"""`meshwright plan`: the table, the contract of --json, the plan as a file, and one message for every mistake."""

from __future__ import annotations

import csv
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.running import Runner, rough_profile

from meshwright.cli.plan.remark import level_lines, tight_lines
from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster, ModelSpec, Plan, Workload

SMALL = ("plan", "gpt2", "4xH100", "--global-batch", 16, "--seq", 1024)

DEGREES = ("tp", "cp", "ep", "pp")
WIDE = ("plan", "llama-3.2-1b", "4xH100", "--global-batch", 16, "--seq", 4096, "--fix", "microbatch_size=1")


def test_the_table_and_a_few_sentences_say_what_was_found_and_the_rest_is_explained(run: Runner) -> None:
    ran = run(*WIDE, "--fix", "tp=2", "--top", 3)
    assert ran.code == 0, ran.stderr
    for words in ("tp2", "MFU", "1 before ", "most of the step", "candidates", "--explain"):
        assert words in ran.stdout, words
    assert "s search, " in ran.stderr and "s search, " not in ran.stdout  # seconds differ each time
    said = ran.stdout.partition("1 before ")[2].splitlines()
    assert len(said) <= 10 and "bfloat16 computes" not in ran.stdout
    more = " ".join(run(*WIDE, "--fix", "tp=2", "--top", 3, "--explain").stdout.split())
    for words in ("basis interpolated: ", "priced in segments", "bfloat16 computes", "software 'fused'"):
        assert words in more, words


@pytest.mark.slow
def test_different_ideas_are_shown_and_all_plans_where_they_are_asked_for(run: Runner) -> None:
    job = ("plan", "llama-3.1-8b", "8xH100", "--global-batch", 64, "--seq", 8192, "--json")
    ideas, every = run(*job).data["plans"], run(*job, "--all").data
    plans = [tomllib.loads(each["plan"]) for each in ideas]
    kinds = [(each.get("recompute"), each.get("schedule"), *map(each.get, DEGREES)) for each in plans]
    assert len(set(kinds)) == len(kinds) >= 3
    assert max(Counter(kind[2:] for kind in kinds).values()) <= 2
    assert [each["place"] for each in every["plans"]] == list(range(1, every["num_simulated"] + 1))
    places = {each["place"]: each["description"] for each in every["plans"]}
    assert all(places[each["place"]] == each["description"] for each in ideas)


def test_a_narrow_terminal_has_the_plans_in_words_that_can_be_read(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(*WIDE, "--fix", "tp=2", "--top", 3).stdout
    head = next(line for line in shown.splitlines() if "tokens/s/GPU" in line)
    assert "memory" in head and "bubble" not in head and "\N{REPLACEMENT CHARACTER}" not in shown
    assert "tp2 dp2, micro 1" in shown and max(map(len, shown.splitlines())) <= 80


def test_what_has_the_same_words_is_told_once() -> None:
    model, cluster = ModelSpec.decoder(8, 512, 8, max_sequence_length=512), Cluster("2x4xH100")
    plan = Plan.of(model, cluster, Workload(16, 512), pp=8, dp=1, dtype="bfloat16")
    found = predict(plan, cluster)
    (line,) = (each for each in level_lines({1: found}) if each.startswith("hidden"))
    assert len(found.exchanges) > 1 and line.count("messages between stages") == 1


def test_json_has_the_promised_fields_best_first(run: Runner) -> None:
    ran = run(*SMALL, "--json", "--all", "--top", 4)
    assert ran.code == 0 and len(ran.data["plans"]) == 4
    steps = [each["step_time_s"] for each in ran.data["plans"]]
    assert steps == sorted(steps)
    for each in ran.data["plans"]:
        low, high = each["step_time_interval_s"]
        assert low < each["step_time_s"] < high and each["basis"] in ("interpolated", "extrapolated")
        assert 0 < each["mfu"] < 1 and 0 <= each["bubble"] < 1 and each["peak_memory_bytes"] > 0
        assert each["tokens_per_s_per_device"] == pytest.approx(16 * 1024 / each["step_time_s"] / 4)
    counts = ran.data["num_evaluated"] + ran.data["num_excluded_by_bound"]
    assert ran.data["num_candidates"] == counts > ran.data["num_simulated"] > 0
    assert ran.data["search_s"] > 0 and 0 <= ran.data["optimality_gap"] < 1 and ran.data["is_complete"]
    assert ran.data["assumptions"] == list(ran.data["overridden_by"])
    assert all(each["worst_memory_bytes"] > each["peak_memory_bytes"] for each in ran.data["plans"])


def test_rates_of_this_computer_are_assumed_until_it_was_calibrated(run: Runner, cache: Path) -> None:
    """Then the page says on which profile its times rest."""
    model = cache.parent / "model.json"
    model.write_text(
        '{"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 64}'
    )
    asked = ("plan", model, "this computer", "--global-batch", 4, "--seq", 16)
    before = " ".join(run(*asked, "--explain").stdout.split())
    assert "assumed until `meshwright calibrate`" in before
    rough_profile().save(cache / "meshwright" / "profile.json")
    after = " ".join(run(*asked, "--explain").stdout.split())
    assert "times rest on the profile" in after and "assumed until" not in after


def test_every_assumption_is_told_with_what_overrides_it(run: Runner) -> None:
    ran = run(*WIDE, "--fix", "tp=2", "--top", 1, "--max-memory", "60GB", "--explain")
    told = " ".join(ran.stdout.split())
    for words in (
        "may fill 60 GB [--max-memory 72GB]",
        "(Megatron-LM with Transformer Engine) [--fix software=NAME]",
        "no dollars are told [--price 2.5]",
    ):
        assert words in told, words
    two_nodes = run(
        "plan", "gpt2", "16xH100", "--global-batch", 16, "--seq", 1024, "--json", "--fix", "dp=16"
    )
    flags = two_nodes.data["overridden_by"]
    assert flags["16xH100 means 2 nodes of 8, the usual node of H100"] == "CLUSTER as NODESxDEVICESxKIND"
    assert any("has a NIC of 50 GB/s" in line and "levels" in flag for line, flag in flags.items())


@pytest.mark.parametrize(("worst_gb", "is_told"), [(96.3, True), (80.0, False)])
def test_a_plan_that_fits_only_as_expected_is_told_so(worst_gb: float, is_told: bool) -> None:
    found: Any = [SimpleNamespace(bound_bytes=worst_gb * 1e9)]
    lines = tight_lines(found, Cluster("1xH100"))
    assert ("1 is expected to fit; at worst it takes 96.3 GB of 85.5 GB" in " ".join(lines)) == is_told
    assert len(lines) == is_told


def test_the_plan_of_least_memory_is_first_for_its_memory(run: Runner) -> None:
    shown = run(*SMALL, "--objective", "memory", "--top", 2).stdout
    line = " ".join(shown.split()).partition("1 before 3: ")[2]
    assert "-" not in line.partition(";")[0] and "less memory" in line.partition(";")[0]


def test_the_best_plan_is_a_file_that_simulates_to_the_same_step(run: Runner, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    ran = run(*SMALL, "--json", "--forbid", "pp,zero3", "-o", file)
    assert ran.code == 0 and Plan.load(file).pp == 1
    again = run("simulate", file, "--json")
    assert again.data["step"]["value"] == pytest.approx(ran.data["plans"][0]["step_time_s"])


def test_all_simulated_plans_are_a_table_for_other_programs(run: Runner, tmp_path: Path) -> None:
    file = tmp_path / "plans.csv"
    data = run(*SMALL, "--fix", "pp=1,cp=1", "--json", "--all", "-o", file).data
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == data["num_simulated"] == len(data["plans"])
    for row, each in zip(rows, data["plans"], strict=True):
        assert (
            float(row["step_s"]) == pytest.approx(each["step_time_s"]) and row["plan"] == each["description"]
        )
        assert int(row["tp"]) * int(row["dp"]) == 4 and int(row["place"]) == each["place"]
        assert float(row["peak_bytes"]) == pytest.approx(each["peak_memory_bytes"])


def test_a_vocabulary_that_does_not_divide_is_said(run: Runner) -> None:
    assert "50257 does not divide" in run(*SMALL, "--top", 1, "--explain").stdout


def test_a_microbatch_is_fixed_as_tables_say_it(run: Runner) -> None:
    said, meant = (
        run(*SMALL, "--top", 1, "--json", "--fix", f"{name}=4").data for name in ("micro", "microbatch_size")
    )
    assert said["plans"] == meant["plans"] and "microbatch_size = 4" in said["plans"][0]["plan"]


def test_a_plan_of_a_file_s_cluster_says_how_it_is_taken(run: Runner, tmp_path: Path) -> None:
    assert run("show", "8xH100", "-o", tmp_path / "as_named.toml").code == 0
    own = tmp_path / "ours.toml"
    own.write_text((tmp_path / "as_named.toml").read_text().replace('"8xH100"', '"ours"'))
    job = (SMALL[0], SMALL[1], *SMALL[3:], "--top", 1, "-o", tmp_path / "best.toml")
    for file, is_told in ((own, True), (tmp_path / "as_named.toml", False)):
        ran = run(*job[:2], file, *job[2:])
        assert ran.code == 0 and (f"--cluster {file}" in " ".join(ran.stderr.split())) == is_told
    assert run("simulate", tmp_path / "best.toml").code == 0


def test_what_is_fixed_twice_over_may_be_said_in_one_or_more_options(run: Runner) -> None:
    fixed = (
        "--fix",
        "tp=2,recompute=full,sharding=zero1,recompute_blocks=0",
        "--fix",
        "sequence_parallel=true",
    )
    ran = run(*WIDE, "--json", *fixed, "--forbid", "cp", "--top", 1)
    assert ran.code == 0
    assert (
        "tp=2" in ran.data["plans"][0]["description"]
        and "sequence_parallel = true" in ran.data["plans"][0]["plan"]
    )
    # exchanges inside layers are rows, and the composed number stands beside
    shown = ran.data["plans"][0]
    assert shown["level"] == "segments" and shown["not_composable"] == []
    assert shown["composed_step_time_s"] == pytest.approx(shown["step_time_s"], rel=0.001)
    gathers = shown["exchanges"]["ALL_GATHER"]
    assert 0 < gathers["hidden_s"] < gathers["seconds"]


def test_nothing_fits_is_the_honest_no(run: Runner) -> None:
    ran = run("plan", "llama-3.1-70b", "8xH100", "--global-batch", 8, "--seq", 4096)
    assert ran.code == 3 and ran.stdout == ""
    assert "nearest misses" in ran.stderr and "needs" in ran.stderr


def test_a_memory_limit_is_kept(run: Runner) -> None:
    ran = run(*SMALL, "--json", "--max-memory", "10GB")
    assert ran.code == 0 and all(each["peak_memory_bytes"] < 10e9 for each in ran.data["plans"])


def test_a_time_limit_ends_early_and_says_so(run: Runner) -> None:
    ran = run(*SMALL, "--time-limit", "1us")
    assert ran.code == 0 and "ended early" in ran.stdout


def test_processes_on_cpus_are_planned_with_the_same_options(run: Runner) -> None:
    ran = run(
        "plan", "gpt2", "2xcpu", "--global-batch", 2, "--seq", 64, "--fix", "pp=1,microbatch_size=1", "--json"
    )
    assert ran.code == 0, ran.stderr
    assert ran.data["plans"][0]["step_time_s"] > 0 and ran.data["num_candidates"] == 2
    without = run("plan", "gpt2", "2xcpu", "--global-batch", 2, "--seq", 64, "--forbid", "pp,full", "--json")
    assert all(each["description"].startswith("pp=1 dp=2") for each in without.data["plans"])
    refused = run("plan", "gpt2", "2xcpu", "--global-batch", 2, "--seq", 64, "--forbid", "nonsense")
    assert refused.code == 2 and "forbid" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpt2", "4xH1000", "--global-batch", 16, "--seq", 1024), "H100"),
        (("gpt9", "4xH100", "--global-batch", 16, "--seq", 1024), "gpt2"),
        (("gpt2", "4xH100", "--global-batch", 7, "--seq", 1024, "--fix", "dp=4"), "not a multiple"),
        (("gpt2", "4xH100", "--global-batch", 7, "--seq", 1024, "--fix", "pp=1,tp=1"), "batch of 7"),
        (("gpt2", "4xH100", "--global-batch", 16, "--seq", 1024, "--fix", "tp=2,pp=4"), "does not divide"),
        (
            ("gpt2", "4xH100", "--global-batch", 16, "--seq", 1024, "--fix", "tp=2", "--forbid", "tp"),
            "both fixed",
        ),
        (("gpt2", "4xH100", "--global-batch", 16, "--seq", 1024, "--fix", "tp=2,tp=4"), "one value"),
        (("gpt2", "4xH100", "--global-batch", 16, "--seq", 1024, "--fix", "tp"), "NAME=VALUE"),
        (("gpt2", "4xH100", "--global-batch", 16, "--seq", 1024, "--fix", "wings=2"), "wings"),
        (("gpt2", "4xH100", "--global-batch", 16, "--seq", 1024, "--max-memory", "1TB"), "up to 85.5 GB"),
        (("gpt2", "4xMI250X", "--global-batch", 16, "--seq", 1024), "--extrapolate"),
        (("gpt2", "4xH100", "--seq", 1024), "--global-batch"),
    ],
)
def test_mistakes_get_one_message(run: Runner, arguments: tuple[object, ...], words: str) -> None:
    ran = run("plan", *arguments)
    assert ran.code == 2 and words in ran.stderr.replace("\n", " ") and "Traceback" not in ran.stderr
    assert ran.stdout == ""
