"""What a page reads out of a document's JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from meshwright.workbench.document.document import Document


def read(document: Document) -> dict[str, Any]:
    """The JSON as a page gets it."""
    found: dict[str, Any] = json.loads(document.text())
    return found


def section(data: dict[str, Any], kind: str) -> dict[str, Any]:
    """The first section of a type."""
    found: dict[str, Any] = next(each for each in data["sections"] if each["type"] == kind)
    return found


def values(column: dict[str, Any]) -> np.ndarray[Any, Any]:
    """A column's values."""
    if "value" in column:
        return np.full(column["count"], column["value"], dtype="<" + column["dtype"])
    found = np.frombuffer(base64.b64decode(column["base64"]), dtype="<" + column["dtype"])
    assert len(found) == column["count"]
    return found
