"""`show` and `list`: the JSON contract of models, and every kind of thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import Runner, rough_profile, small_plan

from meshwright import catalog


@pytest.mark.parametrize(
    ("name", "num_parameters", "num_layers"),
    [("gpt2", 124_439_808, 12), ("llama-3.1-8b", 8_030_261_248, 32), ("Qwen/Qwen3-0.6B", 596_049_920, 28)],
)
def test_show_json_keeps_its_contract(run: Runner, name: str, num_parameters: int, num_layers: int) -> None:
    data = run("show", name, "--json").data
    assert data["num_parameters"] == data["num_active_parameters"] == num_parameters
    assert data["num_layers"] == num_layers
    assert data["train_flops_per_token"] == pytest.approx(6 * num_parameters, rel=0.4)


def test_a_sequence_length_adds_attention(run: Runner) -> None:
    short, long = (run("show", "gpt2", "--seq", n, "--json").data["train_flops_per_token"] for n in (1, 1024))
    assert long - short == 6 * 12 * 768 * 1023


def test_a_folder_with_a_config_is_a_model(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 4}'
    )
    assert run("show", tmp_path, "--json").data["num_layers"] == 2
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    ran = run("show", tmp_path)
    assert ran.code == 2 and "hidden_size" in ran.stderr


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("1f1b", "schedule"),
        ("H100", "device"),
        ("2x8xH100", "cluster"),
        ("this computer", "cluster"),
        ("split_backward", "pass"),
    ],
)
def test_things_are_shown_by_name(run: Runner, what: str, kind: str) -> None:
    assert run("show", what, "--json").data["kind"] == kind
    assert run("show", what).code == 0


def test_files_are_shown_by_what_is_in_them(
    run: Runner, plan_file: Path, trace_file: Path, tmp_path: Path
) -> None:
    program, profile = tmp_path / "a.program", tmp_path / "profile.json"
    assert run("simulate", "--schedule", "gpipe", "-o", program).code == 0
    rough_profile().save(profile)
    for path, kind in (
        (plan_file, "plan"),
        (trace_file, "trace"),
        (program, "program"),
        (profile, "profile"),
    ):
        assert run("show", path, "--json").data["kind"] == kind
        assert run("show", path).stdout.strip()


def test_a_plan_is_shown_with_the_blocks_that_it_recomputes(run: Runner, tmp_path: Path) -> None:
    choices = {"recompute": "full", "recompute_blocks": (2, 1)}
    small_plan(layers_per_stage=(3, 1), **choices).save(tmp_path / "plan.toml")
    assert run("show", tmp_path / "plan.toml", "--json").data["recompute_blocks"] == [2, 1]
    shown = run("show", tmp_path / "plan.toml").stdout
    assert "2, 1" in shown


@pytest.mark.parametrize("slot", ["placement"])
def test_a_slot_without_names_says_how_it_is_filled(run: Runner, slot: str) -> None:
    assert f"--fix {slot}=./mine.py:NAME" in run("list", f"{slot}s").stdout.replace("\n", "")
    assert run("list", f"{slot}s", "--json").data[f"{slot}s"] == []


@pytest.mark.parametrize("kind", ["models", "devices", "clusters", "schedules", "passes"])
def test_every_name_that_is_listed_can_be_shown(run: Runner, kind: str) -> None:
    rows = run("list", kind, "--json").data[kind]
    assert rows
    for row in rows[:6]:
        assert run("show", row["name"], "--json").code == 0


@pytest.mark.parametrize("slot", catalog.SLOTS)
def test_whatever_fills_a_slot_is_listed_with_its_options(run: Runner, slot: str) -> None:
    rows = {
        row["name"]: row
        for row in run("list", catalog.SLOTS[slot].plural, "--json").data[catalog.SLOTS[slot].plural]
    }
    assert set(catalog.slot_names(slot)) <= set(rows)
    for name in catalog.slot_names(slot):
        assert rows[name]["options"] == json.loads(json.dumps(catalog.described(slot, name)["options"])), name
