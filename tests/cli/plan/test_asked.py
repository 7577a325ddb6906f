"""The options of `plan` about money, failures and numbers: every combination that cannot be is one message."""

from __future__ import annotations

import pytest
from tests.cli.running import Runner

JOB = ("plan", "gpt2", "4xH100", "--global-batch", 16)
SEQ = ("--seq", 1024)


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
        ((*SEQ, "--solve", "gpus", "--tokens", "2T"), "--deadline 30d"),
        ((*SEQ, "--deadline", "30d"), "without --solve gpus"),
        ((*SEQ, "--solve", "seq"), "except for seq itself"),
        (("--solve", "microbatch"), "--seq not given"),
        ((*SEQ, "--solve", "microbatch", "--pareto"), "one of them"),
        ((*SEQ, "--solve", "microbatch", "--fix", "microbatch_size=2"), "fixed and solved for"),
        ((*SEQ, "--pareto", "--objective", "memory"), "together"),
        ((*SEQ, "--pareto", "--time-limit", "1s"), "--time-limit"),
        ((*SEQ, "--like", "train.sh", "--pareto"), "--like alone"),
    ],
)
def test_what_cannot_be_is_one_message(run: Runner, arguments: tuple[object, ...], words: str) -> None:
    ran = run(*JOB, *arguments)
    assert ran.code == 2 and words in " ".join(ran.stderr.split()) and "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_processes_have_no_frontier_and_no_objective(run: Runner) -> None:
    job = ("plan", "gpt2", "2xcpu", "--global-batch", 2, "--seq", 64)
    for more in (("--pareto",), ("--objective", "memory")):
        ran = run(*job, *more)
        assert ran.code == 2 and "Traceback" not in ran.stderr
