"""Inputs of the worst kind for what is sent inside layers: each is refused in words, before it takes time or memory.

Every line of a plan file is tried by one verb, and by the others in slow tests; so is all but every third of what is fixed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Ran, Runner

JOB = ("llama-3.1-8b", "1x8xH100", "--global-batch")
LONGEST = 3000  # characters of a message, whatever was given
MANY = ":".join(["1"] * 100_000)

FIXED = [
    "cp=2,context=rings", "cp=2,context=ULYSSES", "parts_of=sequnce,token_parts=2",
    "token_parts=0", "token_parts=-1", "token_parts=nan", "token_parts=1e400", "token_parts=2:-1", "token_parts=0:0",
    "token_parts=1:2:", "token_parts=1.5", "token_parts=٣", "token_parts=999999999999", f"token_parts={MANY}",
    "token_parts=1:99999999999999999999", "gathered=agian", "gathered=kept;rm", "recompute=selectiv_op", "ep=-2", "ep=nan",
    "ep=3", "ep=100000000000", "cp=0", "cp=99999999999999999999999", "tp=inf", "variant=ladder_residul",
    "variant=./none.py:x", "variant=../../etc/passwd:x", "variant=ladder_residual(n=1)", f"variant={'a' * 100_000}",
    f"passes={'+' * 5000}", "microbatch_size=1000000000000000000000",
]  # fmt: skip
IN_FILES = [
    "token_parts = -1", "token_parts = nan", "token_parts = [1, -1]", "token_parts = true",
    f"token_parts = {'9' * 28}", f"token_parts = {'9' * 5000}", f'token_parts = "{MANY}"',
    'parts_of = "sequnce"', 'gathered = "agian"', "gathered = []",
    'context = "rign"', "context = nan", "cp = -2", "cp = 1000000000", "cp = 1.5", "ep = 0", 'ep = "two"',
    'recompute = "selective_opp"', "microbatch_size = 0",
    f"layers_per_stage = {'[' * 3000}{']' * 3000}",
]  # fmt: skip


VERBS = ("simulate", "check", "export", "train")
OF_FILES = [
    pytest.param(line, verb, marks=() if number % len(VERBS) == turn else pytest.mark.slow)
    for number, line in enumerate(IN_FILES)
    for turn, verb in enumerate(VERBS)
]
OF_SEARCH = [
    pytest.param(each, marks=pytest.mark.slow if number % 3 else ()) for number, each in enumerate(FIXED)
]


def named(value: str) -> str:
    """The beginning of a line, in the name of a test."""
    return value[:30]


def check_refused(ran: Ran) -> None:
    """In a few words, by the user's mistake or the honest no."""
    said = ran.stdout + ran.stderr
    assert ran.code in (2, 3), said[:LONGEST]
    assert "Traceback" not in said and "mistake in meshwright" not in said and len(said) < LONGEST, said[
        :LONGEST
    ]


@pytest.mark.parametrize("fixed", OF_SEARCH, ids=named)
def test_plan_refuses_what_cannot_be_fixed(run: Runner, fixed: str) -> None:
    check_refused(run("plan", *JOB, 64, "--seq", 8192, "--fix", fixed))


@pytest.mark.parametrize(("batch", "sequence"), [(64, 10**18), (10**15, 128)])
def test_plan_refuses_batches_that_nobody_trains(run: Runner, batch: int, sequence: int) -> None:
    check_refused(run("plan", *JOB, batch, "--seq", sequence))


@pytest.mark.parametrize(("line", "verb"), OF_FILES, ids=named)
def test_a_plan_file_is_refused_in_every_verb(run: Runner, plan_file: Path, line: str, verb: str) -> None:
    name = line.partition(" ")[0]
    kept = [each for each in plan_file.read_text().splitlines() if not each.startswith(f"{name} =")]
    plan_file.write_text("\n".join([line, *kept]))
    check_refused(run(verb, plan_file, *(["--to", "megatron"] if verb == "export" else [])))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.json", "[" * 200_000),
        ("deep.json", '{"kind": "meshwright-profile", "schema": ' + "[" * 200_000),
        ("deep.toml", "a=" + "[" * 200_000),
        ("deep.toml", "a=" + "{a=" * 100_000 + "1" + "}" * 100_000),
    ],
    ids=["json", "profile", "lists", "tables"],
)
def test_files_that_are_nested_too_deep_are_refused(
    run: Runner, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    check_refused(run("check", tmp_path / name))


@pytest.mark.parametrize(
    "head", ["axes pp=999999999999   microbatches 2", "axes pp=1   microbatches 99999999999"]
)
def test_programs_of_more_than_anybody_runs_are_refused(run: Runner, tmp_path: Path, head: str) -> None:
    (tmp_path / "program.txt").write_text(f"meshwright-program 1   {head}\n0: 0F0\n")
    check_refused(run("check", tmp_path / "program.txt"))
