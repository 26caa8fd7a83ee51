# SPDX-License-Identifier: Apache-2.0
"""Pages and tables of the reference documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def page(title: str, lead: str, *sections: str, source: str) -> str:
    """A page that says what it was generated from."""
    mark = f"<!-- Generated from {source} by `make generate`. -->"
    return "\n\n".join([f"# {title}", mark, lead, *sections]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars and line breaks in cells are escaped."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(cell(text) for text in row) + " |" for row in rows]
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text for a cell of a table: one line, with bars escaped."""
    return prose(" ".join(text.split())).replace("|", "\\|")


def prose(text: str) -> str:
    """Text in which `<` outside of code is no tag."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "\\<") for number, part in enumerate(parts))


def code(text: str) -> str:
    """Inline code; empty text stays empty."""
    return f"`{text}`" if text else ""
