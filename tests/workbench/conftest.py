"""A browser for the tests of pages, and a server on loopback that serves what a test gives it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from benchmarks.headless_browser import NoBrowser, headless_browser
from tests.conftest import CHECKOUT

ASSETS = CHECKOUT / "src" / "meshwright" / "workbench" / "assets"
# What the workbench's own server says: nothing from elsewhere, nothing inline.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
TYPES = {
    "js": "text/javascript",
    "css": "text/css",
    "json": "application/json",
    "html": "text/html; charset=utf-8",
}

Answer = tuple[int, dict[str, Any]]


@pytest.fixture(scope="module")  # while the driver runs nobody else in this process may run an event loop
def browser() -> Iterator[Any]:
    """Chromium without a window; where it or playwright is absent the test is skipped, and says so."""
    try:
        with headless_browser() as started:
            yield started
    except NoBrowser as why:
        pytest.skip(str(why))


def shell(document: dict[str, Any] | None) -> str:
    """The page around the script, with a document in it or without one."""
    text = "" if document is None else json.dumps(document).replace("<", "\\u003c")
    embedded = "" if document is None else f'<script type="application/json" id="document">{text}</script>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>meshwright</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/app.css"></head>'
        f'<body><div id="app"></div>{embedded}<script src="/app.js"></script></body></html>'
    )


class Site:
    """A server of the page; `answer` is asked for what is below /api/."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None
        self.answer: Callable[[str, str, dict[str, Any]], Answer] = lambda method, path, body: (404, {})
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/api/"):
                    self.told("GET")
                elif self.path in ("/app.js", "/app.css"):
                    self.sent(200, (ASSETS / self.path[1:]).read_bytes(), self.path.rpartition(".")[2])
                else:
                    self.sent(200, shell(site.document).encode(), "html")

            def do_POST(self) -> None:
                self.told("POST")

            def do_DELETE(self) -> None:
                self.told("DELETE")

            def told(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, found = site.answer(method, self.path, json.loads(body or b"{}"))
                self.sent(status, json.dumps(found).encode(), "json")

            def sent(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", TYPES[kind])
                self.send_header("Content-Security-Policy", POLICY)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are not what a test prints."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()
    yield found
    found.close()


@pytest.fixture
def open_page(browser: Any, site: Site) -> Iterator[Callable[..., Any]]:
    """Opens the site's page; at the end no page may have said (`.said`) anything on its console."""
    said: list[str] = []
    opened: list[Any] = []

    def opening(query: str = "", **options: Any) -> Any:
        page = browser.new_page(**{"viewport": {"width": 1440, "height": 900}, **options})
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        opened.append(page)
        page.goto(site.url + query)
        return page

    opening.said = said  # type: ignore[attr-defined]
    yield opening
    for page in opened:
        page.close()
    assert said == []


def until(page: Any, expression: str, patience_s: float = 10.0) -> None:
    """Waits until an expression holds; the browser's own waiting needs eval, which the page's policy forbids."""
    end = time.monotonic() + patience_s
    while not page.evaluate(expression):
        if time.monotonic() > end:
            raise AssertionError(f"within {patience_s:g} s it never held: {expression}")
        page.wait_for_timeout(20)


def violations(page: Any) -> list[str]:
    """What axe-core calls serious or critical."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html']}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
