"""A shell completes commands, their options and the names of models, once `--install-completion` has set it up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("meshwright comp", {"compare"}),
        ("meshwright checkpoint ver", {"verify"}),
        ("meshwright plan --glo", {"--global-batch"}),
        ("meshwright plan llama-2", {"llama-2-7b", "llama-2-13b", "llama-2-70b"}),
    ],
)
def test_a_shell_is_offered_what_may_follow(words: str, offered: set[str]) -> None:
    asked = {
        "_MESHWRIGHT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "meshwright"], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert set(done.stdout.split()) == offered, done.stderr
