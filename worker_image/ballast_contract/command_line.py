# SPDX-License-Identifier: Apache-2.0
"""The argument parser of the commands: an option that does not exist is refused with the nearest one that does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from ballast_contract.former_names import RENAMED
from ballast_contract.validation import nearest


class Parser(argparse.ArgumentParser):
    """An argument parser that looks at the options of the whole line first, those of subcommands too."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As the base class; ends the process with exit code 2 for an unknown option, and names the nearest one."""
        args = list(sys.argv[1:] if args is None else args)
        known = list(_options(self))
        for argument in takewhile(lambda argument: argument != "--", args):
            word = argument.partition("=")[0]
            if word.startswith("--") and word not in known:
                self.error(_unknown(word, known))
        return super().parse_args(args, namespace)


def _unknown(word: str, known: Sequence[str]) -> str:
    name = word.lstrip("-").replace("-", "_")
    if name in RENAMED:
        return f"unknown option '{word}': its name here is {RENAMED[name]} in the configuration file"
    hint = nearest(word, known)
    return f"unknown option '{word}'" + (f": did you mean '{hint}'?" if hint else "")


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Options of a parser and of its subcommands, and the names of these, which are mistaken for options too."""
    for action in parser._actions:  # noqa: SLF001 - there is no public way to the list
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, command in action.choices.items():
                yield name
                yield from _options(command)
