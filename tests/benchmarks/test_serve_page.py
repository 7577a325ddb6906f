"""The page of serving beside its peers shows what is kept of its benchmark: tables and figures, each number."""

from __future__ import annotations

from pathlib import Path

import pytest
import serve_page

DOCS = Path(__file__).parents[2] / "docs"
LINES = [
    {"format": "int8", "point": "8x128+48", "engine": "ours", "prefill_tokens_per_s": [1.0, 2.0, 3.0],
     "decode_tokens_per_s": [10.0, 20.0, 30.0], "host_us": [400.0, 500.4, 600.0]},
    {"format": "int8", "point": "8x128+48", "engine": "genai", "prefill_ratio": [0.8, 0.9, 0.99],
     "decode_ratio": [0.9, 1.1, 1.2], "equal_tokens": "3 of 4"},
    {"format": "int8", "point": "8x128+48", "engine": "ctranslate2", "prefill_ratio": [1.1, 1.2, 1.3],
     "decode_ratio": [2.0, 2.1, 2.2], "equal_tokens": "2 of 4"},
]  # fmt: skip


@pytest.mark.parametrize("file", serve_page.kept(), ids=lambda file: file.stem)
def test_the_page_has_what_was_measured(file: Path) -> None:
    found, page = serve_page.read(file), (DOCS / serve_page.PAGE).read_text(encoding="utf-8")
    for name, block in serve_page.blocks(found).items():
        assert f"<!-- {name} -->\n\n{block}\n\n<!-- end {name} -->" in page, (
            "python benchmarks/serve_page.py --docs docs"
        )
    for name, svg in serve_page.figures(found).items():
        assert (DOCS / "figures" / name).read_text(encoding="utf-8") == svg and f"(figures/{name})" in page


def test_who_is_faster_is_said_of_quartiles_that_leave_one_out() -> None:
    said = serve_page.blocks({"model": "small", "results": LINES})
    genai, other = said["ratios small"].splitlines()[2:]
    assert "**0.90 (0.80 to 0.99)**" in genai and "1.10 (0.90 to 1.20), alike" in genai and "3 of 4" in genai
    assert "| 2.10 (2.00 to 2.20) |" in other
    assert said["rates small"].splitlines()[2] == "| int8 | 8x128+48 | 2 | 20 | 500 |"
    assert (
        "CTranslate2" in serve_page.figures({"model": "small", "results": LINES})["serving-decode-small.svg"]
    )
