"""The process that writes chats by a template: with bounded memory, and nothing else in it that could be harmed.

Lines of JSON come in and go out. The first has the template and its bounds, every other the values of one text.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError

from meshwright.serving.text.template_environment import TEMPLATE_ERRORS, template_environment


def main() -> None:
    """Say that we are there, then answer lines until there are no more."""
    _answer({"text": ""})
    first = json.loads(sys.stdin.readline())
    # Before the template is read: Jinja works out at once what is constant in it.
    resource.setrlimit(resource.RLIMIT_AS, (first["most_bytes"], first["most_bytes"]))
    try:
        template = template_environment().from_string(first["text"])
    except (TemplateError, RecursionError, MemoryError) as error:
        _answer({"error": str(error) or type(error).__name__})
        return
    template.globals["strftime_now"] = _time_now
    _answer({"text": ""})
    for line in sys.stdin:
        _answer(_written(template, json.loads(line), first["most_characters"]))


def _written(template: Template, values: Mapping[str, Any], most_characters: int) -> dict[str, str]:
    """The text, or what is wrong."""
    pieces, size = [], 0
    try:
        for piece in template.generate(values):
            size += len(piece)
            if size > most_characters:
                return {"error": f"the text has more than {most_characters} characters"}
            pieces.append(piece)
    except TEMPLATE_ERRORS as error:
        return {"error": str(error) or type(error).__name__}
    except MemoryError:
        return {"error": "it needs too much memory"}
    return {"text": "".join(pieces)}


def _time_now(form: str) -> str:
    """The time here, as templates ask for it."""
    return datetime.now().strftime(form)


def _answer(answer: Mapping[str, str]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
