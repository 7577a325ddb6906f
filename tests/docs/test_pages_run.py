"""What pages show is what comes of it: outputs, files, figures, and every command."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.pages.__main__ import CHECKOUT, pages
from benchmarks.pages.page import NOT_RUN, RUN_BY, Block, blocks, run, shown
from benchmarks.pages.shell import commands

import meshwright as mw
from meshwright.cli.app import root

DOCS = CHECKOUT / "docs"
REFRESH = "write the pages anew: make docs-figures"
# What takes less than a second or two of processor time; the others wait for the slow tests.
SHORT = (
    "docs/index.md",
    "docs/how-to/compare-a-job-of-another-framework.md",
    "docs/how-to/describe-your-cluster.md",
    "docs/understand/communication.md",
    "docs/understand/data-parallelism.md",
    "docs/understand/experts.md",
    "docs/understand/index.md",
    "docs/understand/long-sequences.md",
    "docs/understand/pipeline-parallelism.md",
    "docs/understand/recomputation-and-offload.md",
    "docs/understand/tensor-parallelism.md",
)
# Blocks of commands and snippets that no test runs, by page and reason: how many. Their options are read all the same.
RUN_NOWHERE = {
    ("README.md", "it needs two hosts"): 1,
    ("docs/commands.md", "the trace is Azure's, which publishes it"): 1,
    (
        "docs/how-to/compare-a-job-of-another-framework.md",
        "it is part of a training loop of yours, on GPUs",
    ): 1,
    ("docs/how-to/serve-a-model.md", "it installs"): 1,
    ("docs/how-to/train-on-your-text.md", "it installs"): 1,
    ("docs/how-to/train-on-your-text.md", "it needs a cluster with Slurm"): 1,
}
COMMANDS = re.compile(
    r"^(?:\$ )?(?:meshwright|make|pip3?|python3?|curl|torchrun|srun|sbatch|kubectl|docker|mpirun|\. \S+activate)(?: |$)",
    re.MULTILINE,
)
LEAVES_OUT = ("MissingParameter", "NoArgsIsHelpError")
INLINE = re.compile(r"`(meshwright [a-z][^`]*)`")
STANDS_FOR_MORE = re.compile(r"\.\.\.|\b[A-Z]+\b|[|\[]")
EXAMPLE = """# A page

<!-- set-up: job -->

```console
$ meshwright list schedules --json
...
```

```python title="mine.py"
count = 3
```

```python
from pathlib import Path

print("one\\ntwo\\nthree", Path("mine.py").read_text())
```

```text
one
...
```

```sh
meshwright import train.sh --from megatron --cluster 2x8xH100 --set NNODES=2 \\
    -o plan.toml   # of the set-up
```

<!-- not run: it is an example -->

```sh
meshwright frobnicate
```
"""
TIMES = """<!-- measured -->

```console
$ meshwright simulate --schedule 1f1b --stages 2 --microbatches 2 --json
{
...
  "wall_s": 17
}
```
"""


def _name(page: Path) -> str:
    return page.relative_to(CHECKOUT).with_suffix("").as_posix()


def _pages() -> list[object]:
    short = {CHECKOUT / name for name in SHORT}
    return [
        pytest.param(page, id=_name(page), marks=[] if page in short else [pytest.mark.slow])
        for page in pages()
    ]


@pytest.mark.parametrize("page", _pages())
def test_a_page_shows_what_comes_of_it(page: Path, tmp_path: Path) -> None:
    if re.search(r"^(\$ )?curl ", page.read_text(encoding="utf-8"), re.MULTILINE) and not shutil.which(
        "curl"
    ):
        pytest.skip("the page asks its server with curl, which is not here")
    written = run(page, tmp_path)
    assert written.text == page.read_text(encoding="utf-8"), REFRESH
    for name, content in written.figures.items():
        assert (page.parent / name).read_bytes() == content, f"{name}: {REFRESH}"


def _blocks_of_all() -> list[tuple[str, Block]]:
    return [
        (f"{_name(page)}.md", block) for page in pages() for block in blocks(page.read_text(encoding="utf-8"))
    ]


def test_every_command_and_snippet_runs_or_says_why_not() -> None:
    """A block that is only shown has no command in it; what is run elsewhere names a test, the rest stands in a list."""
    nowhere: Counter[tuple[str, str]] = Counter()
    for page, block in _blocks_of_all():
        runs = block.language in ("console", "sh", "python")
        if block.is_run:
            assert runs or block.title or not COMMANDS.search(block.content), f"{page}:\n{block.content}"
        elif block.remark.startswith(RUN_BY):
            assert (CHECKOUT / block.remark.removeprefix(RUN_BY)).is_file(), block.remark
        else:
            nowhere[page, block.remark.removeprefix(NOT_RUN)] += 1
    assert dict(nowhere) == RUN_NOWHERE


def _told_commands() -> dict[str, bool]:
    """Every command of meshwright that a page writes out: in a block, or in a sentence, which may leave arguments out."""
    blocks_have = [
        line.removeprefix("$ ")
        for _, block in _blocks_of_all()
        for line in commands(block.content)
        if line.removeprefix("$ ").startswith("meshwright ")
    ]
    told = {
        line: False
        for page in pages()
        for line in INLINE.findall(" ".join(page.read_text(encoding="utf-8").split()))
    }
    told |= dict.fromkeys(blocks_have, True)
    return {line: whole for line, whole in told.items() if not STANDS_FOR_MORE.search(line.split(" #")[0])}


def test_every_command_is_read_with_its_options() -> None:
    told = _told_commands()
    assert len(told) > 100
    for line, is_whole in told.items():
        _, *arguments = shlex.split(line.replace("\\\n", " "), comments=True)
        command = root()
        while hasattr(command, "commands") and arguments:
            command = command.commands[arguments.pop(0)]
        try:
            command.make_context(line, arguments)
        except Exception as error:
            assert type(error).__name__ in LEAVES_OUT and not is_whole, f"{line}: {error}"


def test_an_answer_that_changed_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(EXAMPLE, encoding="utf-8")
    written = run(page, tmp_path)
    assert "```text\none\n...\n```" in written.text and '"1f1b"' not in written.text
    assert (tmp_path / "plan.toml").is_file()
    page.write_text(EXAMPLE.replace("one\n...", "two\n..."), encoding="utf-8")
    assert run(page, tmp_path).text != page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "words"),
    [("meshwright show nothing.toml", "nothing.toml"), ("rm -r /", "not rm; say above the block why")],
)
def test_a_command_alone_has_to_end_well(tmp_path: Path, command: str, words: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```sh\n{command}\n```\n", encoding="utf-8")
    with pytest.raises((AssertionError, ValueError), match=words):
        run(page, tmp_path)


def test_what_was_measured_is_written_anew_where_its_words_changed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(TIMES, encoding="utf-8")
    assert run(page, tmp_path).text == TIMES
    page.write_text(TIMES.replace("wall_s", "wall_ms"), encoding="utf-8")
    assert '"wall_s": 0.' in run(page, tmp_path).text


def test_a_file_that_a_command_wrote_is_shown_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    said = "```console\n$ meshwright show 2xH100 -o ours.toml\n...\n```\n"
    page.write_text(said + '\n```toml title="ours.toml"\nschema = 0\n...\n```\n', encoding="utf-8")
    assert '"ours.toml"\nschema = 1\n...\n' in run(page, tmp_path).text


def test_lines_that_are_left_out_stay_out() -> None:
    assert shown("a\nb\nc\nd\n", "x\n...\ny\n") == "a\n...\nd\n"
    assert shown("a\nb\n", "x\n") == "a\nb\n"
    assert shown("a\nb\n  \n", "...\ny\n") == "...\nb\n", "what is run again is shown alike"


def test_every_figure_of_these_pages_is_drawn_by_one() -> None:
    shown_there = {
        Path(name).name
        for page in pages()
        for name in re.findall(r"\]\(([^)]*figures/understand/[^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert {file.name for file in (DOCS / "figures" / "understand").iterdir()} == shown_there


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    listed = re.findall(r"^::: meshwright\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(set(mw.__all__) - {"__version__"})
