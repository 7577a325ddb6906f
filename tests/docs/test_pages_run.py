"""What pages show is what comes of it: outputs, files, figures, and every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.pages.__main__ import DOCS, pages
from benchmarks.pages.page import blocks, run, shown

import meshwright as mw

REFRESH = "write the pages anew: make docs-figures"
# What takes over a few seconds waits for the slow tests.
LONG = ("start.md", "understand/mixed-plans.md", "understand/serving.md", "understand/speculation.md")
# Commands of blocks `sh`: those that train, serve or install, and the test that runs each.
ELSEWHERE: dict[str, str] = {
    "make quickstart": "tests/cli/train/test_training.py",
    "meshwright view": "tests/workbench/test_workbench_walk.py",
    "meshwright generate runs/quickstart/trained": "tests/cli/train/test_training.py",
    "meshwright serve runs/quickstart/trained": "tests/cli/serve/test_serving.py",
    "curl http://127.0.0.1:8000/v1/completions": "tests/serving/api/test_http.py",
}
EXAMPLE = """# A page

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
"""


def _name(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


def _pages() -> list[object]:
    slow = {DOCS / name for name in LONG}
    return [
        pytest.param(page, id=_name(page), marks=[pytest.mark.slow] if page in slow else [])
        for page in pages()
    ]


@pytest.mark.parametrize("page", _pages())
def test_a_page_shows_what_comes_of_it(page: Path, tmp_path: Path) -> None:
    written = run(page, tmp_path)
    assert written.text == page.read_text(encoding="utf-8"), REFRESH
    for name, content in written.figures.items():
        assert (page.parent / name).read_bytes() == content, f"{name}: {REFRESH}"


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_a_command_that_is_not_run_here_is_run_by_a_test(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "sh":
            assert any(block.content.startswith(command) for command in ELSEWHERE), block.content
            assert len(block.content.replace("\\\n", " ").splitlines()) == 1, "a command a block"
    assert all((DOCS.parent / test).exists() for test in ELSEWHERE.values())


def test_an_answer_that_changed_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(EXAMPLE, encoding="utf-8")
    written = run(page, tmp_path)
    assert "```text\none\n...\n```" in written.text and '"1f1b"' not in written.text
    page.write_text(EXAMPLE.replace("one\n...", "two\n..."), encoding="utf-8")
    assert run(page, tmp_path).text != page.read_text(encoding="utf-8")


def test_a_file_that_a_command_wrote_is_shown_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    said = "```console\n$ meshwright show 2xH100 -o ours.toml\n...\n```\n"
    page.write_text(said + '\n```toml title="ours.toml"\nschema = 0\n...\n```\n', encoding="utf-8")
    assert '"ours.toml"\nschema = 1\n...\n' in run(page, tmp_path).text


def test_lines_that_are_left_out_stay_out() -> None:
    assert shown("a\nb\nc\nd\n", "x\n...\ny\n") == "a\n...\nd\n"
    assert shown("a\nb\n", "x\n") == "a\nb\n"


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
