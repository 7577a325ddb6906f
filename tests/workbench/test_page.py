"""The page of a document: complete in itself, its scripts those that are told, all text in it text."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from meshwright.reports.page.report import Figure
from meshwright.workbench import page
from meshwright.workbench.document.document import Document
from meshwright.workbench.page import file_page, served_page

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&<!--"
CODE = "show('</script>');"


@pytest.fixture(params=[True, False], ids=["built", "not built"])
def is_built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(page, "asset", lambda name: CODE if request.param else None)
    return bool(request.param)


def test_text_stays_text_and_the_document_comes_back(is_built: bool) -> None:
    text = file_page(Document("plan", EVIL, EVIL, [Figure(EVIL, EVIL, EVIL)], [EVIL]))
    assert "<img" not in text and "<script>alert" not in text
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', text, re.DOTALL)
    assert found is not None and json.loads(found[1])["title"] == EVIL
    assert ("make web" in text) == (not is_built)


def test_only_its_own_script_may_run(is_built: bool) -> None:
    text = file_page(Document("plan", "it"))
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in scripts]
    assert re.findall(r"sha256-([^']+)'", text) == digests
    assert "default-src 'none'" in text and "http" not in text.replace("http-equiv", "")


def test_the_served_page_has_no_document(is_built: bool) -> None:
    text = served_page()
    assert 'id="document"' not in text and '<script src="/app.js">' in text
