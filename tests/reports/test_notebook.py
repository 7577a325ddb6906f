"""Traces in notebooks."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.reports.sample import pipeline_trace

from meshwright.ir.trace import Trace
from meshwright.reports.notebook import display, show_traces_in_notebooks


def test_a_display_is_html_with_a_picture_and_text() -> None:
    shown = display({"predicted": pipeline_trace(), "measured": pipeline_trace(noise=0.1)})
    root = ElementTree.fromstring(shown._repr_html_())
    assert root.tag == "div" and root[0].tag.endswith("svg")
    assert "predicted" in repr(shown) and "span" in repr(shown)


def test_without_a_notebook_nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert show_traces_in_notebooks() is False


def test_in_a_notebook_traces_show_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[type, Any] = {}
    formatter = SimpleNamespace(for_type=registered.__setitem__)
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert show_traces_in_notebooks() is True
    assert "<svg" in registered[Trace](pipeline_trace(2, 2))
