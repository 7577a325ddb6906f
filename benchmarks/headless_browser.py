"""Chromium without a window, for what measures or tests pages: the one on PATH, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


class NoBrowser(Exception):
    """There is none; says what is missing."""


@contextmanager
def headless_browser() -> Iterator[Any]:
    """A browser; while it is open, nobody else in this process may run an event loop. Raises NoBrowser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoBrowser("playwright is not installed") from None
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        raise NoBrowser(f"no browser is on PATH: none of {', '.join(CHROMIUM)}")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(SWITCHES))
        yield started
        started.close()
