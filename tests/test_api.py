"""The verbs from Python: what they take, what they refuse, and the names that `import meshwright` offers."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import api
from meshwright.ir.text import to_text, to_torch_csv
from meshwright.specs.cluster.profile import kept

MODEL = mw.ModelSpec.decoder(4, 32, 2, max_sequence_length=16)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No profile of the person who runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plan_for_two(**choices: object) -> mw.Plan:
    """A plan on two H100."""
    fields = {"pp": 2, "dp": 1, "dtype": "bfloat16", **choices}
    return mw.Plan.of(MODEL, mw.Cluster("2xH100"), mw.Workload(8, 16), **fields)


def test_every_public_name_is_there_and_typed() -> None:
    for name in mw.__all__:
        assert getattr(mw, name) is not None
    assert {name for name in dir(mw) if not name.startswith("_")} | {"__version__"} == set(mw.__all__)
    tree = ast.parse(Path(mw.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.name for node in imports for alias in node.names if alias.asname == alias.name}
    assert typed | {"__version__"} == set(mw.__all__)
    with pytest.raises(AttributeError, match="not_there"):
        _ = mw.not_there


def test_importing_loads_no_array_library() -> None:
    code = (
        "import sys, meshwright; print({'numpy', 'torch', 'rich', 'typer'} & set(sys.modules) or 'nothing')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "nothing", result.stderr


def test_the_lines_of_the_design_work() -> None:
    model, cluster = mw.Model("gpt2"), mw.Cluster("4xH100", nic="400Gb/s")
    plans = mw.plan(
        model, cluster, global_batch=8, seq=128, fix={"dtype": "bfloat16", "recompute": "none"},
        microbatch_sizes=(1, 2),
    )  # fmt: skip
    predicted = mw.simulate(plans[0])
    assert mw.period_s(predicted) == pytest.approx(plans[0].step.value)
    assert predicted.metadata["step"]["low"] <= predicted.metadata["step"]["value"]
    assert mw.check(plans[0])
    comparison = mw.compare(predicted, mw.simulate(plans[0]))
    assert comparison.step.predicted == comparison.step.measured


def test_a_schedule_is_simulated_from_counts() -> None:
    trace = mw.simulate("1f1b", stages=8, microbatches=24, comm=0.1)
    assert mw.span_s(trace) == pytest.approx(98.4, abs=1e-9)
    same = mw.simulate(schedule="1f1b", stages=8, microbatches=24, comm=0.1)
    assert same.digest == trace.digest


def test_a_schedule_comes_in_many_forms(tmp_path: Path) -> None:
    whole = api.subject("1f1b", stages=2, microbatches=3)
    csv, text, trace = (tmp_path / name for name in ("a.csv", "a.txt", "a.npz"))
    csv.write_text(to_torch_csv(whole.program))
    text.write_text(to_text(whole.program))
    mw.simulate(whole).save(trace)
    for given in (csv, text, str(trace), whole.program, mw.load(trace), mw.load(csv), whole):
        assert mw.span_s(mw.simulate(given)) == pytest.approx(12.0), given


def test_interleaved_chunks_of_a_csv_cost_their_share(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(to_torch_csv(api.subject("interleaved_1f1b", stages=2, microbatches=4).program))
    want = mw.span_s(mw.simulate("interleaved_1f1b", stages=2, microbatches=4))
    assert mw.span_s(mw.simulate(path)) == pytest.approx(want)


def test_passes_apply_to_plans_and_schedules() -> None:
    plain, again = api.subject("gpipe"), api.subject("gpipe", recompute=True, split=True)
    names = {effect.name for effect in again.program.tables.effects}
    assert {"R", "I", "W"} <= names and plain.program.num_rows < again.program.num_rows
    changed = api.subject(plan_for_two(), recompute=True)
    assert changed.plan is not None and changed.plan.recompute == "full"


def test_a_plan_is_the_same_from_its_file(tmp_path: Path) -> None:
    plan_for_two().save(tmp_path / "plan.toml")
    one, other = mw.simulate(plan_for_two()), mw.simulate(tmp_path / "plan.toml")
    assert one.digest == other.digest and mw.span_s(one) == mw.span_s(other)
    assert mw.lower(plan_for_two()).num_lists == 2


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"what": "1f1b", "times": (1.0, 2.0)},
        {"what": "1f1b", "times": (1.0, -2.0, 1.0)},
        {"what": "1f1b", "stages": 0},
        {"what": "1f1b", "chunks": 2},
        {"what": "nothing.toml"},
        {"what": "nothing.py:wave"},
        {"what": plan_for_two(), "stages": 2},
        {"what": 5},
        {"what": [1, 2]},
        {"what": [["F0"]], "stages": 2},
        {"what": [["F0"]], "chunks": 0},
        {"what": "1f1b", "cluster": "2xH100"},
        {"what": "1f1b", "times": (float("nan"), 1.0, 1.0)},
    ],
)
def test_what_cannot_be_is_refused(choices: dict[str, object]) -> None:
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.simulate(**choices)
    assert len(str(caught.value)) > 20


def test_check_says_which_proof_failed(tmp_path: Path) -> None:
    assert mw.check("zb_h1", stages=3, microbatches=5, recompute=True)
    backwards = tmp_path / "b.csv"
    backwards.write_text("0B0,0F0\n1F0,1B0\n")
    refused = mw.check(backwards)
    assert not refused and refused.legal is False and isinstance(refused.error, mw.ProgramError)
    program = api.subject("1f1b", stages=2, microbatches=3).program
    crossed = to_text(program).replace("1RECV_F0 1F0 1RECV_F1", "1RECV_F1 1RECV_F0 1F0")
    assert crossed != to_text(program), "the text was not changed"
    path = tmp_path / "c.txt"
    path.write_text(crossed)
    assert not mw.check(path)


@pytest.mark.parametrize(
    "body, words",
    [
        ("[[f'F{k}' for k in range(m)] for d in range(p)]", "nothing on stage 0 adds"),
        (
            "[[f'{n}{k}' for n in 'FB' for k in range(m - 1)] for d in range(p)]",
            "never computes microbatch 1 of 2",
        ),
        ("[['F0', 'B0', 'F1', 'B1']] + [[] for d in range(p - 1)]", "has 1 stages, 2 were asked for"),
    ],
)
def test_check_refuses_half_an_order(tmp_path: Path, body: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(f"def half(p, m):\n    return {body}\n")
    refused = mw.check(f"{tmp_path / 'mine.py'}:half", stages=2, microbatches=2)
    assert refused.legal is False and words in str(refused.error)


def test_a_host_that_is_none_is_refused() -> None:
    with pytest.raises(mw.SpecError, match="asynchronous or in_order"):
        mw.check("1f1b", host="patient")


def test_training_refuses_a_program_that_is_not_whole(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = "def twice(p, m):\n    return [[f'{n}{k}' for n in 'FFB' for k in range(m)] for d in range(p)]\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(mw.ProgramError, match="a second time"):
        mw.train(plan_for_two(schedule=f"{tmp_path / 'mine.py'}:twice"), iterations=1)


def test_check_bounds_memory() -> None:
    proof = mw.check(plan_for_two())
    assert proof.fits and proof.capacity_bytes == 81_559 * 2**20 and len(proof.peak_bytes) == 2
    tight = mw.check(plan_for_two(), memory_bytes=1000)
    assert tight.fits is False and isinstance(tight.error, mw.OutOfMemoryError)
    assert mw.check("1f1b").fits is None


def test_find_knows_everything_by_name(tmp_path: Path) -> None:
    found = {name: type(mw.find(name)).__name__ for name in ("gpt2", "1f1b", "A100-80", "4x8xH100")}
    assert list(found.values()) == ["ModelSpec", "Schedule", "DeviceSpec", "ClusterSpec"]
    with pytest.raises(mw.UnknownNameError, match="gpt2"):
        mw.find("gtp2")
    (tmp_path / "odd.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(mw.SpecError, match="not text"):
        mw.load(tmp_path / "odd.bin")


def test_training_refuses_before_it_starts_anything() -> None:
    with pytest.raises(mw.SpecError, match="no plan"):
        mw.train("1f1b")
    with pytest.raises(mw.SpecError, match="iterations"):
        mw.train(plan_for_two(), iterations=0)


def test_calibrate_keeps_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "meshwright.executor.measure.measure.measure", lambda n, **_: mw.Profile("cpu", num_processes=n)
    )
    profile = mw.calibrate(3)
    assert kept() == profile and profile.num_processes == 3
    mw.calibrate(2, keeps=False)
    assert kept() == profile


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda: mw.simulate("1f1b", stagess=4), "stages"),
        (lambda: mw.check("1f1b", microbatch=4), "microbatches"),
        (lambda: mw.train("plan.toml", itrations=4), "iterations"),
    ],
)
def test_a_misspelt_argument_is_told_with_its_near_match(call: Callable[[], object], near: str) -> None:
    with pytest.raises(mw.UnknownNameError, match=f"did you mean .*{near}"):
        call()
