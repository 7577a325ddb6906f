"""The rules for all commands: streams, JSON, files, exit codes, near matches, and no traceback unless asked."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from meshwright import __version__, api
from meshwright.cli.app import root
from meshwright.cli.frame.command import docstring_of
from meshwright.cli.frame.output import Output, Result
from meshwright.specs.option import flag_of, options_of
from tests.cli.running import Runner, start

COMMANDS = [
    *"bench calibrate check checkpoint compare doctor export generate import list place plan".split(),
    *"quickstart reproduce run serve show simulate systems train validate view".split(),
]
RECORDED = Path(__file__).parents[2] / "src/meshwright/systems/moe/standard_library_routing.npz"
SIMULATE = ("simulate", "--schedule", "1f1b", "-p", 2, "-m", 2)
# What every rule is tried on; {plan} and {trace} are files. The rest trains or measures, see test_training.
QUICK: dict[str, tuple[object, ...]] = {
    "simulate": SIMULATE,
    "simulate all": ("simulate", "--schedule", "all"),
    "simulate plan": ("simulate", "{plan}"),
    "check": ("check", "--schedule", "zb_h1"),
    "check plan": ("check", "{plan}"),
    "plan": (
        "plan",
        "gpt2",
        "2xH100",
        "--global-batch",
        8,
        "--seq",
        1024,
        "--fix",
        "recompute=none",
        "--top",
        2,
    ),
    "show model": ("show", "gpt2"),
    "show plan": ("show", "{plan}"),
    "show trace": ("show", "{trace}"),
    "show schedule": ("show", "1f1b"),
    "show device": ("show", "H100"),
    "show cluster": ("show", "2x8xH100"),
    "show pass": ("show", "recompute"),
    "place": ("place", "{routing}", "--devices", 2, "--by", "contiguous"),
    "list": ("list", "models"),
    "systems": ("systems",),
    "doctor": ("doctor",),
    "compare": ("compare", "{trace}", "{trace}"),
    "view plan": ("view", "{plan}", "--no-open"),
    "view traces": ("view", "{trace}", "{trace}", "--no-open"),
    "checkpoint inspect": ("checkpoint", "inspect", "{checkpoints}"),
    "checkpoint verify": ("checkpoint", "verify", "{checkpoints}"),
}


@pytest.fixture(params=QUICK.values(), ids=QUICK.keys())
def arguments(
    request: pytest.FixtureRequest, plan_file: Path, trace_file: Path, checkpoint_folder: Path
) -> tuple[str, ...]:
    files = {"plan": plan_file, "trace": trace_file, "checkpoints": checkpoint_folder, "routing": RECORDED}
    return tuple(str(word).format(**files) for word in request.param)


def test_all_commands_are_there_and_share_their_options() -> None:
    found: Any = root()
    assert sorted(found.commands) == COMMANDS
    groups = [one for one in found.commands.values() if hasattr(one, "commands")]
    leaves = [item for one in (found, *groups) for item in one.commands.items() if item[1] not in groups]
    for name, one in leaves:
        own = {flag for parameter in one.real.params for flag in parameter.opts}
        shared = {flag_of(*each) for each in options_of(Output)}
        assert len(shared) == 8 and own >= shared, f"{name} lacks {shared - own}"
        assert docstring_of(one.where) == one.real.help, (
            f"{name} says something else about itself in the list"
        )


def test_json_is_one_object_and_nothing_else(run: Runner, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments, "--json", "--quiet", "--explain")
    assert ran.code == 0 and ran.stderr == ""
    assert ran.data["schema"] == 1 and ran.data["meshwright"] == __version__
    assert ran.data["wall_s"] > 0
    assert isinstance(ran.data["explanation"], list)


def test_the_result_is_on_stdout_and_files_say_the_same(
    run: Runner, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    data, page = tmp_path / "out.json", tmp_path / "out.html"
    ran = run(*arguments, "-o", data, "--report", page, "--seed", 1)
    assert ran.code == 0 and ran.stdout.strip()
    assert f"wrote {data}" in ran.stderr.replace("\n", "")
    assert json.loads(data.read_text())["meshwright"] == __version__
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("-o", "none/out.json"), "no folder none"),
        (("-o", "out.xyz"), "no form"),
        (("--report", "out.pdf"), "is no page"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    run: Runner, path: tuple[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "simulate", lambda *given, **choices: pytest.fail("it ran"))
    ran = run(*SIMULATE, *path)
    assert ran.code == 2 and words in ran.stderr and ran.stdout == ""


def test_no_command_begins_for_a_form_that_it_does_not_write(
    run: Runner, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Output, "deliver", lambda out, result: pytest.fail("it ran"))
    ran = run(*arguments, "-o", "out.xyz")
    assert ran.code == 2 and "out.xyz says no form" in ran.stderr and ".json" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "work"),
    [
        (
            ("simulate", "--schedule", "all", "-o", "out.npz"),
            "api.subjects.schedule_comparison:compare_schedules",
        ),
        ((*SIMULATE, "-o", "out.csv"), "api:simulate"),
        (("compare", "{plan}", "{trace}", "-o", "out.svg"), "api:compare_log"),
        (("compare", "{plan}", "{trace}", "-o", "out.png"), "api:compare_log"),
        (("plan", "gpt2", "2xH100", "--global-batch", 8, "--seq", 64, "-o", "out.sh"), "api:plan"),
        (("plan", "2xH100", "--like", "{plan}", "-o", "out.sh"), "api:plan"),
        (
            ("plan", "2xH100", "--like", "a.sh", "--from", "megatron", "--to", "plan", "-o", "out.sh"),
            "api:plan",
        ),
        (("plan", "2xH100", "--like", "a.sh", "--from", "megatron", "-o", "out.npz"), "api:plan"),
    ],
)
def test_a_form_of_the_same_command_with_other_options_is_refused_before_the_work(
    run: Runner, arguments: tuple[object, ...], work: str, plan_file: Path, trace_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    module, _, function = work.partition(":")
    monkeypatch.setattr(
        importlib.import_module(f"meshwright.{module}"),
        function,
        lambda *given, **choices: pytest.fail("it ran"),
    )
    ran = run(*(str(word).format(plan=plan_file, trace=trace_file) for word in arguments))
    assert ran.code == 2 and "says no form" in ran.stderr, ran.stderr


def test_a_result_has_no_form_that_its_command_was_not_registered_with(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "meshwright.cli.look.simulating.trace_result", lambda *_: Result({}, forms={".odd": str})
    )
    ran = run(*SIMULATE)
    assert ran.code == 1 and "{'.odd'}" in ran.stderr


def test_what_was_interrupted_before_there_was_a_file_ends_as_interrupted(
    run: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "meshwright.cli.look.simulating.trace_result",
        lambda *_: Result({"steps": 0}, ["none"], exit_code=130),
    )
    ran = run(*SIMULATE, "-o", tmp_path / "out.npz")
    assert ran.code == 130 and ran.stdout == "none\n" and "is not written" in ran.stderr
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("check", "--schedule", "1f1b", "--schedule", "gpipe"), "--schedule"),
        (("simulate", "--schedule", "1f1b", "-p", 2, "--stages=4"), "--stages"),
        ((*SIMULATE, "--seed", 1, "--seed", 2), "--seed"),
        (("checkpoint", "convert", "a", "--to", "x", "--to", "y"), "--to"),
    ],
)
def test_an_option_of_one_value_is_not_taken_twice(
    run: Runner, arguments: tuple[object, ...], option: str
) -> None:
    ran = run(*arguments)
    assert ran.code == 2 and ran.stdout == ""
    assert option in ran.stderr and "given 2 times" in ran.stderr


def test_flags_and_options_of_several_values_may_be_repeated(run: Runner) -> None:
    ran = run("simulate", "--schedule", "1f1b", "--schedule", "gpipe", "--json", "--json", "-q")
    assert ran.code == 0 and len(ran.data["schedules"]) == 2


def test_text_can_be_written(run: Runner, tmp_path: Path) -> None:
    ran = run(*SIMULATE, "-o", tmp_path / "out.txt", "-q")
    assert ran.code == 0 and "bubble" in (tmp_path / "out.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (("simulate", "--schedule", "1f1c"), "1f1b"),
        (("check", "--schedule", "gpip"), "gpipe"),
        (("show", "lama-3.1-8b"), "llama-3.1-8b"),
        (("list", "model"), "models"),
        (("reproduce", "gpip"), "gpipe"),
        (("calibrate", "--effort", "ful"), "full"),
        (("checkpoint", "verifi"), "verify"),
        (("simulat",), "simulate"),
        (("simulate", "--shedule", "1f1b"), "--schedule"),
    ],
)
def test_unknown_names_list_near_matches(run: Runner, arguments: tuple[str, ...], near: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2 and ran.stdout == "" and near in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate",),
        ("simulate", "plan.toml", "--schedule", "1f1b"),
        ("simulate", "nothing.toml"),
        ("simulate", "--schedule", "1f1b", "--times", "1,2"),
        ("simulate", "--schedule", "1f1b", "--times", "1,-2,1"),
        ("simulate", "--schedule", "1f1b", "--stages", "0"),
        ("simulate", "--schedule", "1f1b", "--iterations", "0"),
        ("simulate", "--schedule", "1f1b", "-o", "out.unknown"),
        ("simulate", "--schedule", "1f1b", "-o", "no/such/folder/out.json"),
        ("compare", "nothing.npz", "nothing.npz"),
        ("train", "nothing.toml"),
        ("quickstart", "--seconds", "0"),
        ("calibrate", "--processes", "0"),
        ("show", "nothing.npz"),
        ("checkpoint", "inspect", "nothing"),
        (),
    ],
)
def test_a_mistake_is_told_in_one_message(
    run: Runner, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert ran.code == 2
    assert "Traceback" not in ran.stderr and (ran.stderr or not arguments)


def test_our_own_failure_shows_its_traceback_only_with_debug(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **choices: object) -> None:
        raise RuntimeError("a wheel came off")

    monkeypatch.setattr(api, "simulate", broken)
    quiet, loud = run(*SIMULATE), run(*SIMULATE, "--debug")
    assert quiet.code == loud.code == 1
    assert "a wheel came off" in quiet.stderr and "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    told = run(*SIMULATE, "--json")
    assert told.data["error"]["exit_code"] == 1 and "a wheel came off" in told.data["error"]["message"]


def test_ctrl_c_is_130(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **choices: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "simulate", interrupted)
    assert run(*SIMULATE).code == 130


def test_version(run: Runner) -> None:
    ran = run("--version")
    assert ran.code == 0 and ran.stdout == f"meshwright {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [("--help",), SIMULATE, ("check", "--schedule", "1f1b"), ("list", "schedules")]
)
def test_what_should_be_fast_loads_nothing_heavy(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    probe = tmp_path / "sitecustomize.py"
    probe.write_text(
        "import atexit, sys\n"
        "HEAVY = {'torch', 'numba', 'scipy', 'transformers'}\n"
        "atexit.register(lambda: print('LOADED', *(HEAVY & set(sys.modules)), file=sys.stderr))\n"
    )
    source = Path(api.__file__).parents[2]
    ran = start(arguments, tmp_path, {"PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"})
    assert ran.code == 0, ran.stderr
    assert ran.stderr.splitlines()[-1].strip() == "LOADED"
