"""`systems` and `reproduce`: the JSON contracts, and exit 3 where a claim fails."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.running import Runner

import meshwright.evidence
from meshwright.evidence.claim.system_card import system
from meshwright.specs import ExecutionError

CLAIM = {
    "claim": "speed-up at n=4",
    "kind": "predicted",
    "paper_value": 2.0,
    "our_value": 2.1,
    "ratio": 1.05,
    "unit": "x",
    "tolerance": 0.1,
    "passed": True,
    "how": "simulated",
    "not_run": None,
}
ABSENT = {
    "our_value": None, "ratio": None, "passed": False, "how": "trained; not run: no graph", "not_run": "no graph",
}  # fmt: skip


def test_systems_json_keeps_its_contract(run: Runner) -> None:
    found = {row["name"]: row for row in run("systems", "--json").data["systems"]}
    gpipe = found["gpipe"]
    assert set(gpipe) == {
        "name",
        "family",
        "summary",
        "paper",
        "simulated",
        "executed",
        "exhibit",
        "usable",
        "use",
        "num_claims",
        "num_predicted",
        "num_closer_than_null",
        "num_failed",
        "num_headlines",
        "num_headlines_failed",
    }
    assert gpipe["family"] == "pipeline" and "1811.06965" in gpipe["paper"]
    assert gpipe["simulated"] is True and gpipe["num_claims"] > 0
    assert gpipe["exhibit"] is False and gpipe["use"].startswith("meshwright plan ")
    assert all(row["usable"] is not row["exhibit"] for row in found.values())


def test_what_misses_is_seen(run: Runner) -> None:
    """Of a system whose abstract is missed the list counts it, and the card has our number beside the paper's, and "no"."""
    row = next(row for row in run("systems", "--json").data["systems"] if row["name"] == "fs_moe")
    results = json.loads((system("fs_moe").folder / "results.json").read_text())["claims"]
    missed = [each for each in results if not each["passed"]]
    assert (row["num_failed"], row["num_headlines_failed"]) == (
        len(missed),
        sum("abstract" in each["source"] for each in missed),
    )
    assert 0 < row["num_headlines_failed"] < row["num_headlines"]
    line = next(line for line in run("systems").stdout.splitlines() if line.split()[:1] == ["fs_moe"])
    assert f"{row['num_headlines_failed']}/{row['num_headlines']}" in line
    card = run("systems", "fs_moe").stdout
    assert f"{row['num_headlines_failed']} of the {row['num_headlines']} of its abstract" in " ".join(
        card.split()
    )
    assert [line.split()[-1:] for line in card.splitlines()].count(["no"]) == len(missed)
    for each in missed:
        assert f"{each['our_value']:.5g}" in card


def test_what_is_not_recorded_says_neither(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.evidence.claim.recorded.results_of", lambda folder: ())
    row = next(row for row in run("systems", "--json").data["systems"] if row["name"] == "fs_moe")
    assert row["num_headlines"] > 0 and row["num_headlines_failed"] is None
    assert not {"yes", "no"} & {
        line.split()[-1] for line in run("systems", "fs_moe").stdout.splitlines() if line.split()
    }


@pytest.mark.parametrize(("paper_value", "said"), [(2.0, "10 %"), (0.0, "0.1 x")])
def test_a_tolerance_is_relative_or_in_the_unit_where_the_paper_has_zero(
    run: Runner, monkeypatch: pytest.MonkeyPatch, paper_value: float, said: str
) -> None:
    claims = [{**CLAIM, "paper_value": paper_value}]
    monkeypatch.setattr(
        meshwright.evidence, "reproduce", lambda name, **_: {"name": name, "claims": claims, "wall_s": 1.0}
    )
    assert said in run("reproduce", "gpipe").stdout


@pytest.mark.parametrize(
    ("claims", "code"),
    [([CLAIM], 0), ([CLAIM, {**CLAIM, "passed": False, "our_value": None, "ratio": None}], 3)],
)
def test_reproduce_json_keeps_its_contract(
    run: Runner, monkeypatch: pytest.MonkeyPatch, claims: list[dict[str, Any]], code: int
) -> None:
    def recomputed(name: str, progress: Any = None, data: Any = None, **_: Any) -> dict[str, Any]:
        assert data is None
        progress(claims[0]["claim"], 0.0)
        return {"name": name, "claims": claims, "wall_s": 1.0}

    monkeypatch.setattr(meshwright.evidence, "reproduce", recomputed)
    ran = run("reproduce", "gpipe", "--json")
    assert ran.code == code and "speed-up at n=4" in ran.stderr
    assert ran.data["name"] == "gpipe" and ran.data["claims"] == claims and ran.data["wall_s"] < 60
    assert run("reproduce", "gpipe").code == code
    known = [row["name"] for row in run("systems", "--json").data["systems"]]
    assert [one["name"] for one in run("reproduce", "--json").data["systems"]] == known
    assert {"gpipe", "megatron_lm"} <= set(known)


def test_data_that_is_missing_is_said_once_and_a_folder_is_passed_on(
    run: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def recomputed(name: str, progress: Any = None, data: Any = None, **_: Any) -> dict[str, Any]:
        return {"name": name, "claims": [CLAIM if data else {**CLAIM, **ABSENT}] * 2, "wall_s": 1.0}

    monkeypatch.setattr(meshwright.evidence, "reproduce", recomputed)
    without = run("reproduce", "gnn_pipe")
    assert without.code == 3 and without.stdout.count("2 of 2 not run: no graph") == 1
    given = run("reproduce", "gnn_pipe", "--data", str(tmp_path))
    assert given.code == 0 and "not run" not in given.stdout


@pytest.mark.parametrize(
    ("others", "code", "said"),
    [((CLAIM,), 0, "yes"), (({**CLAIM, "passed": False},), 3, "no"), ((), 3, "")],
)
def test_a_claim_that_was_not_run_neither_holds_nor_fails(
    run: Runner, monkeypatch: pytest.MonkeyPatch, others: tuple[dict[str, Any], ...], code: int, said: str
) -> None:
    claims = [{**CLAIM, **ABSENT}, *others]
    monkeypatch.setattr(
        meshwright.evidence, "reproduce", lambda name, **_: {"name": name, "claims": claims, "wall_s": 1.0}
    )
    ran = run("reproduce", "gpipe")
    rows = [line.split("10 %")[1].strip() for line in ran.stdout.splitlines() if "10 %" in line]
    assert ran.code == code and rows == ["not run", *([said] if said else [])]


def test_a_claim_that_stops_says_why_below_the_table(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: int) -> float:
        raise ExecutionError("rank 1 died")

    monkeypatch.setattr("meshwright.systems.hardware.amd_platform.card.usable_link", fail)
    ran = run("reproduce", "amd_platform")
    assert ran.code == 3 and "failed: rank 1 died" in ran.stdout


def test_data_for_a_system_that_reads_none_is_a_mistake(run: Runner, tmp_path: Path) -> None:
    assert run("reproduce", "vocabulary_parallel", "--data", str(tmp_path)).code == 2
    assert run("reproduce", "gnn_pipe", "--data", str(tmp_path / "elsewhere")).code == 2


def test_each_claim_is_told_when_it_is_done_and_an_interrupted_run_shows_what_it_found(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(name: str, progress: Any, done: Any, **_: Any) -> dict[str, Any]:
        progress("speed-up at n=4", 0.0)
        done(SimpleNamespace(to_dict=lambda: CLAIM))
        raise KeyboardInterrupt

    monkeypatch.setattr(meshwright.evidence, "reproduce", cut_short)
    ran = run("reproduce", "gpipe", "--json")
    assert ran.code == 130 and ran.data["claims"] == [CLAIM]
    assert "yes: ours 2.1, paper 2 x, ratio 1.050" in ran.stderr and "goes on from there" in ran.stderr


def test_an_interrupt_before_any_claim_is_only_that(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(name: str, **_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(meshwright.evidence, "reproduce", at_once)
    ran = run("reproduce", "gpipe")
    assert ran.code == 130 and not ran.stdout


def test_only_the_claims_with_these_words(run: Runner) -> None:
    ran = run("reproduce", "gpipe", "--only", "IDLE SHARE", "--json")
    assert ran.code == 0 and len(ran.data["claims"]) == 2
    assert {claim["kind"] for claim in ran.data["claims"]} == {"identity"}
    assert [
        one["name"] for one in run("reproduce", "--only", "with K=8, M=32", "--json").data["systems"]
    ] == ["gpipe"]
    for words in (("gpipe",), ()):
        missing = run("reproduce", *words, "--only", "no such claim")
        assert missing.code == 2 and "no such claim" in missing.stderr


def test_a_system_shows_its_card_and_its_claims(run: Runner) -> None:
    ran = run("systems", "gpipe", "--explain")
    assert "1811.06965" in ran.stdout and "Differs:" in ran.stdout and "idle share" in ran.stdout
    found = run("systems", "gpipe", "--json").data
    assert found["num_claims"] == len(found["claims"]) and all(claim["reason"] for claim in found["claims"])
    assert f"{found['num_failed']} of {found['num_claims']} claims fail" in ran.stdout.replace("\n", " ")
    assert found["labels"]["Kind"] == "schedule" and found["use"].startswith("meshwright plan ")
    assert run("systems", "no_such_system").code == 2


def test_the_list_of_systems_is_a_line_each_in_80_columns(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = run("systems", "--json").data["systems"]
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("systems").stdout
    assert max(map(len, shown.splitlines())) <= 80
    for row in rows:
        (line,) = (line for line in shown.splitlines() if line.split()[:1] == [row["name"]])
        assert row["summary"].split()[0] in line and f"/{row['num_claims']}" in line
        assert f"/{row['num_headlines']} " in line
    assert (
        len([line for line in shown.splitlines() if line.strip()]) == len(rows) + 3
    )  # head, rule, where more is
    assert "yes" not in shown  # what is true of all is no column
    monkeypatch.setenv("COLUMNS", "200")
    wide = run("systems").stdout
    assert "closer" in wide and all(row["summary"] in wide for row in rows)
