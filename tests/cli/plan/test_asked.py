"""The options of `plan` about money, failures and numbers: every combination that cannot be is one message."""

from __future__ import annotations

import pytest
from tests.cli.running import Runner

JOB = ("plan", "gpt2", "4xH100", "--global-batch", 16)
SEQ = ("--seq", 1024)
OTHER = ("--planner", "megatron_rules")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*SEQ, "--objective", "speed"), "no objective named 'speed'"),
        ((*SEQ, "--objective", "cost"), "--price 2.5"),
        ((*SEQ, "--price", -1), "--price"),
        ((*SEQ, "--power", "700V"), "700W or 0.7kW"),
        ((*SEQ, "--tokens", "2TB"), "2T, 500B"),
        ((*SEQ, "--mtbf", "50000h"), "--checkpoint, --restart"),
        ((*SEQ, "--mtbf", "0h", "--checkpoint", "1s", "--restart", "1s"), "times above 0"),
        ((*SEQ, "--solve", "gpu"), "did you mean gpus?"),
        ((*SEQ, "--solve", "gpus", "--deadline", "30d"), "--tokens 2T"),
        ((*SEQ, "--deadline", "30d"), "without --solve gpus"),
        ((*SEQ, "--solve", "seq"), "except for seq itself"),
        (("--solve", "microbatch"), "--seq not given"),
        ((*SEQ, "--solve", "microbatch", "--pareto"), "one of them"),
        ((*SEQ, "--solve", "microbatch", "--fix", "microbatch_size=2"), "fixed and solved for"),
        ((*SEQ, "--pareto", "--objective", "memory"), "together"),
        ((*SEQ, "--pareto", "--time-limit", "1s"), "--time-limit"),
        ((*SEQ, "--like", "train.sh", "--pareto"), "--like with --solve, --pareto"),
        ((*SEQ, *OTHER, "--pareto"), "--pareto with --planner megatron_rules; allowed: "),
        (("--solve", "seq", *OTHER), "--solve seq with --planner megatron_rules; allowed: "),
        ((*SEQ, *OTHER, "--like", "plan.toml"), "--like with --planner megatron_rules; allowed: "),
        ((*SEQ, *OTHER, "--time-limit", "1s"), "--time-limit with --planner megatron_rules; allowed: "),
        ((*SEQ, *OTHER, "--forbid", "bogus"), "no 'bogus' to forbid"),
        ((*SEQ, *OTHER, "--forbid", "dp"), "--forbid dp with --planner megatron_rules"),
    ],
)
def test_what_cannot_be_is_one_message(run: Runner, arguments: tuple[object, ...], words: str) -> None:
    ran = run(*JOB, *arguments)
    assert ran.code == 2 and words in " ".join(ran.stderr.split()) and "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_processes_have_a_frontier_and_objectives(run: Runner) -> None:
    job = ("plan", "gpt2", "2xcpu", "--global-batch", 2, "--seq", 64, "--fix", "schedule=1f1b", "--json")
    front = run(*job, "--pareto")
    steps, peaks = (
        [each[key] for each in front.data["plans"]] for key in ("step_time_s", "peak_memory_bytes")
    )
    assert front.code == 0 and steps == sorted(steps) and peaks == sorted(peaks, reverse=True)
    least = run(*job, "--objective", "memory")
    assert least.data["plans"][0]["peak_memory_bytes"] == min(peaks)


def test_what_processes_cannot_be_asked_says_why(run: Runner) -> None:
    job = ("plan", "gpt2", "2xcpu", "--global-batch", 2)
    gpus = run(*job, "--seq", 64, "--solve", "gpus", "--deadline", "1d", "--tokens", "1M")
    assert gpus.code == 2 and "processes of this machine" in gpus.stderr
    layers = run(*job, "--seq", 64, "--layer-wise")
    assert layers.code == 2 and "no closed form" in layers.stderr


def test_beside_another_planners_plans_stands_the_best_of_ours(run: Runner) -> None:
    job = (*JOB, *SEQ, *OTHER, "--top", 1)
    assert "our own search" in " ".join(run(*job).stdout.split())
    shown = run(*job, "--json")
    ours, (theirs,) = shown.data["own_search"], shown.data["plans"]
    assert ours["step_time_s"] <= theirs["step_time_s"] and ours["plan"] != theirs["plan"]
