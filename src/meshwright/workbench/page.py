"""The page: one HTML text with a document, script and style in it, or the one that the workbench's server gives out."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable

from meshwright.workbench.document.document import SCHEMA, Document

SCRIPT, STYLE = "app.js", "app.css"
WORKBENCH_TITLE = "meshwright workbench"
# Styles of single elements are set by charts; scripts are those that are told here, and nothing is fetched from elsewhere.
SERVED_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILE_POLICY = (
    "default-src 'none'; script-src '{hash}'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)
MISSING = "This copy of meshwright was made without the page's script. `make web` builds it, and needs node."

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{schema}">{policy}
<title>{title}</title>
{style}
</head>
<body>
<div id="app"></div>
<noscript>{still}</noscript>
{missing}{data}{script}
</body>
</html>
"""


def file_page(document: Document) -> str:
    """One self-contained page that shows a document. All text in it is escaped; it loads nothing from anywhere."""
    script, style = (asset(name) for name in (SCRIPT, STYLE))
    code = (script or "").replace(
        "</", "<\\/"
    )  # in scripts only texts and patterns have it, which may be written so
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode("ascii")
    policy = FILE_POLICY.format(hash=f"sha256-{digest}")
    return PAGE.format(
        schema=SCHEMA,
        policy=f'\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        title=escape(document.title),
        style=f"<style>{_inside(style or '')}</style>",
        still=_still(document),
        missing="" if script else f"<p>{escape(MISSING)}</p>{_still(document)}",
        data=_embedded(document),
        script=f"<script>{code}</script>",
    )


def served_page(document: Document | None = None) -> str:
    """The page of a server, which asks it for documents; without one to begin with it is the workbench."""
    missing = "" if asset(SCRIPT) else f"<p>{escape(MISSING)}</p>"
    return PAGE.format(
        schema=SCHEMA,
        policy="",
        title=escape(WORKBENCH_TITLE if document is None else document.title),
        style=f'<link rel="stylesheet" href="/{STYLE}">',
        still="The workbench needs scripts." if document is None else _still(document),
        missing=missing,
        data="" if document is None else _embedded(document),
        script=f'<script src="/{SCRIPT}"></script>',
    )


def asset(name: str) -> str | None:
    """A file of the page, as it was built; None where it was not."""
    found: Traversable = resources.files("meshwright.workbench") / "assets" / name
    return found.read_text(encoding="utf-8") if found.is_file() else None


def script_safe(text: str) -> str:
    """JSON that cannot end its script element."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _embedded(document: Document) -> str:
    return f'<script type="application/json" id="document">{script_safe(document.text())}</script>\n'


def _inside(code: str) -> str:
    """Script or style that cannot end its element; only texts and patterns have what would, and may be written so."""
    return code.replace("</", "<\\/")


def _still(document: Document) -> str:
    """Title, facts and notes for who runs no scripts."""
    facts = "".join(
        f"<li>{escape(each.name)}: <b>{escape(each.value)}</b> {escape(each.note)}</li>"
        for each in document.facts
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in document.notes)
    head = f"<h1>{escape(document.title)}</h1><p>{escape(document.subtitle)}</p>"
    return f"{head}<ul>{facts}</ul><ul>{notes}</ul>"
