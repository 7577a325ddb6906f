"""Recomputing claims: the numbers of the contract, a missing torch said in words, wrong references refused."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.evidence import reproduce
from meshwright.evidence.claim import kept as KEPT
from meshwright.evidence.claim.claim import Claim, ClaimResult
from meshwright.evidence.claim.reproduce import reads_data, recompute
from meshwright.evidence.claim.system_card import system
from meshwright.specs import ExecutionError, SpecError
from meshwright.specs.error import MissingDataError

REPRODUCE = importlib.import_module(
    "meshwright.evidence.claim.reproduce"
)  # the package has a function of that name
MODULE = "meshwright.systems.pipeline.gpipe"
CLAIM = Claim(
    "c",
    "predicted",
    3 / 11,
    "share",
    0.1,
    "how",
    "reason",
    "mechanism:bubble_share",
    {"num_partitions": 4, "num_microbatches": 8},
)


def test_a_claim_is_recomputed_by_the_function_it_names() -> None:
    assert recompute(CLAIM, MODULE).our_value == pytest.approx(3 / 11)


@pytest.mark.parametrize("by", ["no_such_function", "study:no_such_function", "os:getcwd"])
def test_a_function_that_is_not_there_is_refused(by: str) -> None:
    with pytest.raises(SpecError):
        recompute(replace(CLAIM, by=by), MODULE)


def test_without_torch_a_measured_claim_has_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(REPRODUCE.importlib, "import_module", missing)
    result = recompute(replace(CLAIM, by="study:memory_ratio"), MODULE)
    assert result.our_value is None and not result.passed and "torch" in result.not_run


def test_a_run_that_fails_is_a_claim_that_did_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: int) -> float:
        raise ExecutionError("rank 1 died")

    monkeypatch.setattr("meshwright.systems.pipeline.gpipe.mechanism.bubble_share", fail)
    result = recompute(CLAIM, MODULE)
    assert not result.passed and "rank 1 died" in result.how
    assert not result.not_run and result.to_dict()["not_run"] is None
    assert result.to_dict()["failed"] == "rank 1 died"


def test_claims_alone_find_what_a_system_fills() -> None:
    """A claim may plan with its system's own name; a process that only reproduces knows it, too."""
    told = (
        "import meshwright.evidence.claim.reproduce; from meshwright.specs.slot import resolve; "
        "print(resolve('sharding', 'low_bandwidth_partitioning').values)"
    )
    found = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False)
    assert found.returncode == 0 and int(found.stdout) >= 0, found.stderr


def test_a_claim_whose_data_is_not_here_was_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(**_: int) -> float:
        raise MissingDataError("no graph")

    monkeypatch.setattr("meshwright.systems.pipeline.gpipe.mechanism.bubble_share", absent)
    result = recompute(CLAIM, MODULE)
    assert result.our_value is None and not result.passed and result.not_run == "no graph"
    assert result.how == "how; not run: no graph"


def test_a_folder_of_data_is_told_to_the_functions_that_read_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def reading(data: Path | None = None, **_: int) -> float:
        return 3 / 11 if data == tmp_path else 0.0

    card = replace(system("gpipe"), claims=(CLAIM,))
    monkeypatch.setattr(REPRODUCE, "system", lambda name: card)
    assert not reads_data(card)
    with pytest.raises(SpecError, match="none of its claims reads any"):
        reproduce("gpipe", data=tmp_path)
    monkeypatch.setattr("meshwright.systems.pipeline.gpipe.mechanism.bubble_share", reading)
    assert reads_data(card)
    with pytest.raises(SpecError, match="no such folder"):
        reproduce("gpipe", data=tmp_path / "elsewhere")
    passed = [reproduce("gpipe", data=data)["claims"][0]["passed"] for data in (str(tmp_path), None)]
    assert passed == [True, False]


def test_the_graphs_are_data() -> None:
    pytest.importorskip("torch")
    assert reads_data(system("gnn_pipe"))


def test_the_answer_has_the_form_that_others_script_against(monkeypatch: pytest.MonkeyPatch) -> None:
    card = system("gpipe")
    simulated = tuple(claim for claim in card.claims if claim.kind != "measured")
    monkeypatch.setattr(REPRODUCE, "system", lambda name: replace(card, claims=simulated))
    seen: list[float] = []
    answer = reproduce("gpipe", progress=lambda what, share: seen.append(share))
    assert list(answer) == ["name", "claims", "wall_s"] and answer["name"] == "gpipe"
    assert len(answer["claims"]) == len(simulated) == len(seen)
    assert all(isinstance(row["our_value"], float) for row in answer["claims"])
    # Identities hold by construction. Of the rest at least one fails: the imbalance of AmoebaNet's stages is not in it.
    assert all(row["passed"] for row in answer["claims"] if row["kind"] == "identity")
    assert not all(row["passed"] for row in answer["claims"])


def test_a_run_that_was_cut_short_is_gone_on_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its values are taken until a run comes to its end, and never by other code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    claims = tuple(
        replace(CLAIM, claim=f"claim {number}", arguments={"number": number}) for number in range(3)
    )
    monkeypatch.setattr(REPRODUCE, "system", lambda name: replace(system("gpipe"), claims=claims))
    ran: list[int] = []

    def counted(number: int) -> float:
        ran.append(number)
        return float(number)

    monkeypatch.setattr("meshwright.systems.pipeline.gpipe.mechanism.bubble_share", counted)

    def stop(result: ClaimResult) -> None:
        if result.our_value == 1.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("gpipe", again=False, done=stop)
    assert ran == [0, 1]
    assert [claim["our_value"] for claim in reproduce("gpipe")["claims"]] == [0.0, 1.0, 2.0]
    assert ran == [0, 1, 0, 1, 2]  # all of them where it is not asked for
    monkeypatch.setattr(KEPT, "sources_digest", lambda: "other code")
    with pytest.raises(KeyboardInterrupt):
        reproduce("gpipe", again=False, done=stop)
    assert ran == [0, 1, 0, 1, 2, 0, 1]
    answer = reproduce("gpipe", again=False)
    assert [claim["our_value"] for claim in answer["claims"]] == [0.0, 1.0, 2.0] and ran[-1:] == [2]
    assert len(ran) == 8 and not list(tmp_path.rglob("*.json"))
    reproduce("gpipe", again=False)
    assert len(ran) == 11  # the run before had come to its end


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "digest": "x", "data": "", "values": 3}']
)
def test_kept_values_that_are_damaged_are_none(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(KEPT, "sources_digest", lambda: "x")
    path = tmp_path / "meshwright" / "claims-gpipe.json"
    path.parent.mkdir()
    path.write_text(text)
    assert KEPT.KeptValues.of("gpipe", None).values == {}


def test_claims_that_failed_are_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = KEPT.KeptValues.of("gpipe", None)
    kept.add(CLAIM.failed("rank 1 died"))
    kept.add(CLAIM.judge(0.25))
    assert KEPT.KeptValues.of("gpipe", None).values == {KEPT.key_of(CLAIM): 0.25}
    assert KEPT.KeptValues.of("gpipe", tmp_path).values == {}  # of other data
