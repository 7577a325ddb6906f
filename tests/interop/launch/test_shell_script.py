"""Commands of a shell script: variables, arrays, defaults, arithmetic and conditions; nothing is executed."""

from __future__ import annotations

import shutil
import subprocess

import hypothesis
import hypothesis.strategies as st
import pytest

from meshwright.interop.launch.shell_script import ShellScript
from meshwright.specs.error import PlanError

# Each ends with a command `run`, whose words a real shell would see too.
SCRIPTS = (
    'A=4\nB="x y"\nrun $A "$B" $B ${C:-7} ${A:-8}',
    "A=( --x 1\n  --y 2 ) # of interest\nA+=( --z 3 )\nrun ${A[@]} end",
    'A=("--format hybrid" --b)\nrun "${A[@]}"; B=1',
    'A=("--format hybrid" --b)\nrun ${A[@]} $((2 * 3 + 1))',
    "N=4; export M=$(($N*2)); run --a $M --b=${N}x$M",
    'D=fp8\nA=()\nif [[ "$D" == "fp8" ]]; then\n A+=(--yes)\nelse\n A+=(--no)\nfi\nrun ${A[@]} x',
    'D=bf16\nif [ "$D" = fp8 ]; then A=1; elif [ "$D" = bf16 ]; then A=2; else A=3; fi\nrun $A',
    'D=2\nif [ $D -gt 1 ] && [ -n "$D" ]; then\n  if [ $D -eq 3 ]; then A=x; else A=y; fi\nfi\nrun $A',
    'if [ -z "$NOT_SET_ANYWHERE" ]; then A=empty; fi\nrun $A \\\n  b',
    "A=1\nA=2 run $A 'single $A' \"double $A\"",
    'A="--x 1"; A="$A --y 2"; A+=" --z"; run $A',
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_words_are_those_that_a_shell_passes(script: str) -> None:
    words = ShellScript.read(script).commands[-1]
    assert words[0] == "run"
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash to compare with")
    shown = subprocess.run(
        [bash, "-c", f"run() {{ printf '%s\\0' run \"$@\"; }}\n{script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert words == shown.stdout.split("\0")[:-1]


def test_what_only_a_running_shell_knows_stays_as_it_is_written() -> None:
    words = ShellScript.read("run --a $(nproc) --b $OUTSIDE --c ${1} --d $((OUTSIDE * 2))").commands[0]
    assert words == ["run", "--a", "$(nproc)", "--b", "$OUTSIDE", "--c", "${1}", "--d", "$((OUTSIDE * 2))"]


def test_variables_from_outside_win() -> None:
    script = ShellScript.read("A=1\nrun $A $B", {"A": "5", "B": "6"})
    assert script.commands == [["run", "5", "6"]]


def test_a_condition_that_cannot_be_decided_is_noted() -> None:
    script = ShellScript.read("if grep -q x file; then run yes; else run no; fi")
    assert script.commands == [["run", "yes"]] and "grep" in script.notes[0]


def test_a_branch_that_is_not_taken_runs_nothing_inside() -> None:
    script = ShellScript.read(
        "if [ a = b ]; then\n if [ a = a ]; then run inner; else run other; fi\nfi\nrun end"
    )
    assert script.commands == [["run", "end"]]


@hypothesis.given(st.text(alphabet="aA1_=$(){}[]@\"'\\` \n;&|#-+:*/if ", max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    script = ShellScript.read(text)
    assert all(isinstance(word, str) for words in script.commands for word in words)
    assert all(script.commands)


def test_variables_that_double_for_ever_are_refused_before_they_fill_the_memory() -> None:
    for doubled in ("A=$A$A", "A+=$A", "A=($A $A)"):
        with pytest.raises(PlanError, match="A among them"):
            ShellScript.read("\n".join(["A=xxxxxxxxxx", *[doubled] * 60, "run --layers $A"]))


def test_a_number_that_grows_for_ever_stays_as_it_is_written() -> None:
    script = ShellScript.read("\n".join(["A=7", *["A=$((A*A))"] * 60, "run --layers $A"]))
    assert script.commands == [["run", "--layers", "$((A*A))"]]
    deep = "$((" + "(" * 100_000 + "1" + ")" * 100_000 + "))"
    assert len(ShellScript.read(f"run {deep}").commands) == 1
