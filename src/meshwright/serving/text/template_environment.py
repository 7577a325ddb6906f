"""The Jinja that chat templates are written for: a sandbox that sees no attribute of Python and no file."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

NO_MARKS = ("", "")
# What a template may raise that is not for these messages: it may add a number to a text, or ask for what they have not.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


class GenerationBlock(Extension):
    """Puts the environment's `marks` around what stands in {% generation %} .. {% endgeneration %}."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's own nodes with a mark before and behind them."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = getattr(self.environment, "marks", NO_MARKS)
        first, last = (nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in marks)
        return [first, *body, last]


def template_environment(marks: tuple[str, str] = NO_MARKS) -> ImmutableSandboxedEnvironment:
    """As transformers has it, without a clock. `marks`: before and behind what the assistant says itself."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.extend(marks=marks)
    environment.filters["tojson"] = _json_text
    environment.globals["raise_exception"] = _refuse
    return environment


def _json_text(value: Any, ensure_ascii: bool = False, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **more)


def _refuse(message: str) -> NoReturn:
    """What templates call where they do not like a conversation."""
    raise TemplateError(message)
