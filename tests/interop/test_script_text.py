"""Hostile texts as a shell, YAML and TOML take them: every script does what it did, and no more."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.interop.export import LAUNCHERS, export_plan
from meshwright.interop.launch.export import job_name
from meshwright.interop.launch.shell_script import ShellScript
from meshwright.interop.script_text import comment, quoted, shell_word, toml_value
from meshwright.specs import Cluster, Plan, Workload, load_model

CLUSTER = Cluster("1x8xH100")
PLAN = Plan.of(load_model("mixtral-8x7b"), CLUSTER, Workload(64, 4096), ep=8, dp=8, sharding="zero1")
# No name of these may do anything; what ends lines is refused when a model is named.
NAMES = (
    "$(touch owned)", "`touch owned`", "; touch owned", "' ; touch owned '", '" && touch owned "', "#!/bin/sh", "*", "~",
    "--help", "MESHWRIGHT_PLAN", "\\", "a: b", "- x", "{x", "<script>", "=1+1", "%n%s", "x" * 1000,
)  # fmt: skip
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=40)


@given(TEXTS)
def test_a_word_is_read_back_as_it_was(text: str) -> None:
    assert ShellScript.read(f"run {shell_word(text)}").commands == [["run", text]]


@given(TEXTS)
def test_a_string_is_read_back_as_it_was(text: str) -> None:
    assert json.loads(quoted(text)) == text
    assert yaml.safe_load(f"key: {quoted(text)}") == {"key": text}
    assert tomllib.loads(f"key = {quoted(text)}") == {"key": text}


@given(st.lists(TEXTS | st.integers(-9, 9) | st.booleans(), max_size=3))
def test_a_list_of_toml_is_read_back_as_it_was(values: list[str | int]) -> None:
    """Characters outside the basic plane, too: TOML knows no pairs of surrogates, which JSON may write."""
    values = [*values, "\U0001f642"]
    assert tomllib.loads(f"key = {toml_value(values)}") == {"key": values}


@given(TEXTS)
def test_a_comment_says_nothing_else(text: str) -> None:
    written = f"{comment(text)}\nkey = 1\n"
    assert tomllib.loads(written) == {"key": 1}
    assert yaml.safe_load(f"{comment(text)}\nkey: 1\n") == {"key": 1}
    assert ShellScript.read(f"{comment(text)}\nrun 1\n").commands == [["run", "1"]]


VISIBLE = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=60)


@settings(max_examples=40)
@given(VISIBLE | st.sampled_from(NAMES), st.sampled_from(("", " - x", ": y", " # z", "\N{PILE OF POO}")))
def test_a_name_is_a_string_in_yaml_and_nothing_else(name: str, behind: str) -> None:
    """All documents of the job are those of an ordinary name, but for the job's own name, a label that DNS takes."""
    plan = replace(PLAN, model=replace(PLAN.model, name=name + behind))
    found = list(yaml.safe_load_all(export_plan(plan, "k8s", CLUSTER).text))
    assert [each["kind"] for each in found] == ["ConfigMap", "Service", "Job"]
    assert tomllib.loads(found[0]["data"]["plan.toml"])["model"]["name"] == name + behind
    job = {each["metadata"]["name"] for each in found}
    assert job == {job_name(plan)} and re.fullmatch(r"train(-[a-z0-9]+)*", job.pop())


@pytest.mark.parametrize("target", [*LAUNCHERS, "megatron"])
def test_a_name_changes_nothing_that_a_script_does(target: str) -> None:
    """Of every script all but the plan's own text, the comments and the job's name are those of an ordinary name."""

    def lines(name: str) -> list[str]:
        plan = replace(PLAN, model=replace(PLAN.model, name=f"model {name}"))
        found = export_plan(plan, target, CLUSTER)
        return [
            line
            for line in found.text.replace(job_name(plan), "JOB").splitlines()
            if not line.startswith(("#", "name = ", "  plan.toml: ")) or line.startswith(("#!", "#SBATCH"))
        ]

    usual = lines("x")
    for name in NAMES:
        assert lines(name) == usual, name


def test_a_script_with_every_name_runs_nothing_of_it(tmp_path: Path) -> None:
    """Up to the command that trains, which is a stand-in here."""
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "torchrun"
    stand_in.write_text("#!/bin/sh\nexit 0\n")
    stand_in.chmod(0o755)
    for name in NAMES:
        found = export_plan(replace(PLAN, model=replace(PLAN.model, name=name)), "torchrun", CLUSTER)
        (tmp_path / "job.sh").write_text(found.text)
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        subprocess.run(["sh", "job.sh"], check=True, cwd=tmp_path, env={"PATH": path})
        assert not (tmp_path / "owned").exists()
