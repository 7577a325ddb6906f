"""The process that writes chats by a template, and has nothing else in it that could be harmed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError

from meshwright.serving.confined.answering import Answerer, Refused, answer_lines
from meshwright.serving.text.template_environment import TEMPLATE_ERRORS, template_environment


def began(first: Mapping[str, Any]) -> Answerer:
    """What writes a chat by the template in `first`. Raises Refused where it is none."""
    try:
        template = template_environment().from_string(first["text"])
    except (TemplateError, RecursionError, MemoryError) as error:
        raise Refused(str(error) or type(error).__name__) from error
    template.globals["strftime_now"] = _time_now
    most_characters = first["most_characters"]

    def written(values: Mapping[str, Any]) -> str:
        pieces, size = [], 0
        try:
            for piece in template.generate(values):
                size += len(piece)
                if size > most_characters:
                    raise Refused(f"the text has more than {most_characters} characters")
                pieces.append(piece)
        except TEMPLATE_ERRORS as error:
            raise Refused(str(error) or type(error).__name__) from error
        return "".join(pieces)

    return written


def _time_now(form: str) -> str:
    """The time here, as templates ask for it."""
    return datetime.now().strftime(form)


if __name__ == "__main__":
    answer_lines(began)
