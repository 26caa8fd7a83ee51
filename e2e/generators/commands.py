# SPDX-License-Identifier: Apache-2.0
"""The reference of the commands, from their own argument parsers."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ballast_operator.edge import arguments, plugin, simulate
from ballast_worker.bundle import cli
from ballast_worker.control import main
from e2e.generators.markdown import code, page, prose, table

_EXAMPLES = "examples:\n"


def outputs(_: Path) -> dict[str, str]:
    """The page by path."""
    parsers = [part.command_line() for part in (plugin, simulate, cli, main)] + [arguments.command_line({})]
    lead = (
        "What `--help` says, of every command that comes with the package. An option that does not exist is refused, with the "
        "nearest one that does."
    )
    return {
        "docs/reference/commands.md": page(
            "Commands", lead, *map(_command, parsers), source="the parsers of their arguments"
        )
    }


def _command(parser: argparse.ArgumentParser) -> str:
    parts = [f"## {parser.prog}", *_text(parser.description), *_text(parser.epilog), _arguments(parser)]
    for name, summary, inner in _commands(parser):
        parts += [
            f"### {parser.prog} {name}",
            f"{prose(summary[:1].upper() + summary[1:])}.",
            *_text(inner.description),
        ]
        parts += [_arguments(inner), *(_text(inner.epilog) if inner.epilog != parser.epilog else [])]
    return "\n\n".join(part for part in parts if part)


def _arguments(parser: argparse.ArgumentParser) -> str:
    """A table of what a command takes besides `--help` and commands; nothing when that is nothing."""
    rows = []
    for action in parser._actions:  # noqa: SLF001 - there is no public way to the list
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):  # noqa: SLF001
            continue
        meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
        needed = action.required and action.option_strings
        rows.append((code(_written(action)), f"{meaning}; required" if needed else meaning))
    return table(("Argument", "Meaning"), rows) if rows else ""


def _written(action: argparse.Action) -> str:
    """An argument as it is written on a command line."""
    value = str(action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest))
    if action.nargs == argparse.OPTIONAL:
        value = f"[{value}]"
    return (
        ", ".join(action.option_strings) + (f" {value}" if action.nargs != 0 else "")
        if action.option_strings
        else value
    )


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Name, summary and parser of each command below another."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            listed: Any = action._choices_actions  # noqa: SLF001
            yield from ((each.dest, each.help or "", action.choices[each.dest]) for each in listed)


def _text(text: str | None) -> list[str]:
    """Paragraphs of a description or an epilog, with examples and what is indented as blocks."""
    found = []
    for block in (text or "").strip("\n").split("\n\n"):
        if block.startswith(_EXAMPLES):
            found.append(f"```text\n{textwrap.dedent(block.removeprefix(_EXAMPLES))}\n```")
        elif block.startswith(" "):
            found.append(f"```text\n{textwrap.dedent(block)}\n```")
        elif block:
            found.append(prose(" ".join(block.split())))
    return found
