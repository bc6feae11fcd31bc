"""``{% around ui.table(…) %} … {% endaround %}``: what stands around a part of a page, written so that the part can be
rendered piece by piece.

``{% call %}`` hands the whole of it to a macro at once, and nothing else happens in the process until it is there. Here
the macro is asked with a hole in the place of the part, which is then rendered between the two halves.
"""

from __future__ import annotations

import secrets
from typing import Final

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from markupsafe import Markup

# Nobody who writes into a field can know it.
HOLE: Final = Markup(secrets.token_hex(16))


class Around(Extension):
    tags = {"around"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        call = parser.parse_expression()
        if not isinstance(call, nodes.Call):
            parser.fail("around needs a call of a macro", line)
        call.kwargs.append(nodes.Keyword("caller", self.attr("hole", lineno=line)))
        part = parser.parse_statements(("name:endaround",), drop_needle=True)
        halves = parser.free_identifier(line)
        return [
            nodes.Assign(halves, self.call_method("halved", [call], lineno=line), lineno=line),
            _half(halves, 0, line),
            *part,
            _half(halves, 1, line),
        ]

    def hole(self) -> Markup:
        return HOLE

    def halved(self, text: Markup) -> tuple[Markup, Markup]:
        before, _, after = text.partition(HOLE)
        return before, after


def _half(halves: nodes.Node, which: int, line: int) -> nodes.Output:
    half = nodes.Getitem(halves, nodes.Const(which), "load", lineno=line)
    return nodes.Output([half], lineno=line)
