"""`meshwright plan --report`: the page of a search, a frontier, processes; each assumption with what overrides it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from tests.cli.plan.test_like import FEW, PLACE
from tests.cli.plan.test_like import JOB as FILES
from tests.cli.running import Runner

from meshwright import api
from meshwright.api.plans.plan_text import plan_words
from meshwright.cli.plan.assumed import FLAGS, flag_of
from meshwright.cli.plan.report import BUBBLE, Shown, plans_report
from meshwright.interop.plan_difference import OptionChange
from meshwright.planner.search.plans import Plans
from meshwright.reports.page.plan_page import NO_FLAG
from meshwright.reports.page.report import DataTable, Report
from meshwright.specs import Cluster, Plan

JOB = ("plan", "llama-3.2-1b", "2x8xH100", "--global-batch", 64, "--seq", 2048)
FIX = ("--fix", "tp=2,microbatch_size=1,recompute=none,sharding=zero1", "--top", 3)


@pytest.fixture(scope="module")
def found() -> Plans:
    """Few simulations of a pipeline."""
    fix = {"pp": 4, "tp": 2, "schedule": "1f1b", "recompute": "none"}
    result = api.plan("llama-3.2-1b", "2x8xH100", global_batch=64, seq=2048, fix=fix, num_simulated=4)
    assert isinstance(result, Plans)
    return result


@pytest.fixture(scope="module")
def report(found: Plans) -> Report:
    """The page of the fixture `found`."""
    lines = (*found.assumptions, *found[0].assumptions)
    return plans_report(Shown(found, Cluster("2x8xH100"), dict(enumerate(found[:2], 1)), assumptions=lines))


def test_what_changes_in_the_file_of_today_stands_behind_the_plans(found: Plans) -> None:
    change = (
        OptionChange("--tensor-model-parallel-size", "8", "4"),
        OptionChange("--sequence-parallel", None, ""),
    )
    shown = Shown(found, Cluster("2x8xH100"), {1: found[0]}, today=found[1], changes=change)
    table = plans_report(shown).leading[1]
    assert isinstance(table, DataTable) and table.title == "What changes"
    assert [tuple(row.values()) for row in table.rows] == [
        ("--tensor-model-parallel-size", "8", "4"), ("--sequence-parallel", "-", "set"),
    ]  # fmt: skip


def text_of(path: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", path.read_text(encoding="utf-8")))


def test_the_page_has_what_the_terminal_says(run: Runner, tmp_path: Path) -> None:
    target = tmp_path / "plan.html"
    ran = run(*JOB, *FIX, "--price", 2.5, "--tokens", "1T", "--report", target)
    assert ran.code == 0, ran.stderr
    text = text_of(target)
    for words in (
        "llama-3.2-1b on 2x8xH100", "Plan 1 is", "USD per billion tokens", "kWh per billion tokens", "optimality gap",
        "--fix dtype=float16", "--price 2.5", "nodes of 8", "Memory of the best plan", "pareto frontier", "tp2",
        "time of 1 T tokens", "USD of 1 T tokens", "without failures or checkpoints",
    ):  # fmt: skip
        assert words in text, words
    page = target.read_text(encoding="utf-8")
    assert "://" not in page
    assert run(*JOB, *FIX, "--price", 2.5, "--tokens", "1T", "--report", target).code == 0
    assert target.read_text(encoding="utf-8") == page


def test_the_parts_of_a_bar_sum_to_its_step(found: Plans, report: Report) -> None:
    drawn = next(part for part in report.leading if part.title == "Where the step goes")
    assert not isinstance(drawn, DataTable) and BUBBLE in drawn.svg
    widths = [
        float(wide)
        for wide in re.findall(r'<rect x="[\d.]+" y="8.0" width="([\d.]+)" height="24"', drawn.svg)
    ]
    second = [
        float(wide)
        for wide in re.findall(r'<rect x="[\d.]+" y="42.0" width="([\d.]+)" height="24"', drawn.svg)
    ]
    assert sum(widths) / sum(second) == pytest.approx(found[0].step.value / found[1].step.value, rel=2e-3)


def test_every_device_of_the_pipeline_and_every_simulated_plan_is_drawn(found: Plans, report: Report) -> None:
    pictures = {part.title: part for part in report.leading}
    memory, scatter = pictures["Memory of the best plan"], pictures["Step against memory"]
    assert not isinstance(memory, DataTable) and not isinstance(scatter, DataTable)
    assert [name in memory.svg for name in (">pp0<", ">pp3<", ">pp4<")] == [True, True, False]
    assert scatter.svg.count("; step ") == len(found)
    assert report.predicted is not None and report.predicted.program.num_lists == 4


def test_each_assumption_has_a_flag(report: Report) -> None:
    table = next(part for part in report.tables if part.title == "Assumptions")
    flags = {row["assumed"]: row["to change it"] for row in table.rows}
    assert len(flags) >= 8 and NO_FLAG not in flags.values(), flags
    assert all(flag_of(f"xx {words} yy") != NO_FLAG for words, _ in FLAGS)
    assert flag_of("the moon is full") == NO_FLAG


def test_flags_that_fix_a_field_are_taken(run: Runner) -> None:
    ran = run(*JOB, *FIX, "--fix", "dtype=float16,overlap=reduce+gather", "--max-memory", "72GB", "--json")
    assert ran.code == 0 and "float16" in ran.data["plans"][0]["plan"]


@pytest.mark.slow
def test_a_frontier_and_processes_have_a_page_too(run: Runner, tmp_path: Path) -> None:
    front, processes = tmp_path / "front.html", tmp_path / "processes.html"
    ran = run(*JOB, "--fix", "tp=2,pp=1,microbatch_size=1", "--pareto", "--report", front)
    assert ran.code == 0 and "on the frontier" in text_of(front), ran.stderr
    cpu = ("plan", "gpt2", "2xcpu", "--global-batch", 2, "--seq", 64, "--fix", "pp=1,microbatch_size=1")
    assert run(*cpu, "--report", processes).code == 0
    assert "tokens/s/process" in text_of(processes) and "--max-memory" not in text_of(processes)


@pytest.mark.slow
def test_todays_plan_is_the_first_row_of_its_page(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(FILES["deepspeed"][1])
    target = tmp_path / "like.html"
    job = ("plan", *PLACE["deepspeed"], "--like", tmp_path / "ds.json", "--from", "deepspeed", *FEW)
    ran = run(*job, "--report", target, "--top", 2)
    assert ran.code == 0, ran.stderr
    text = text_of(target)
    assert "A step of today's plan takes" in text
    assert text.index("today  ") < text.index("Where the step goes")


def test_a_plan_in_words_for_people(found: Plans) -> None:
    words = plan_words(found[0].plan)
    assert words.startswith("16 devices: 2-way tensor parallel") and "a pipeline of 4 (1F1B)" in words
    model, workload = found[0].plan.model, found[0].plan.workload
    alone = Plan.of(model, Cluster("1xH100"), workload, dtype="bfloat16", recompute="full")
    assert plan_words(alone) == "1 device, microbatches of 1 sequence, recompute, bfloat16"
    cut = alone.changed(microbatch_size=2, token_parts=2)
    assert "microbatches of 2 sequences, in parts of 1+1, recompute" in plan_words(cut)
