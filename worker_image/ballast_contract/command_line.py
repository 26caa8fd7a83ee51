# SPDX-License-Identifier: Apache-2.0
"""The argument parser of the commands: an option that does not exist is refused with the nearest one that does."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ballast_contract.validation import nearest


class Parser(argparse.ArgumentParser):
    """An argument parser that names the nearest option, of its own or of a subcommand, for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """End the process with exit code 2 and the message."""
        if message.startswith("unrecognized arguments:"):
            known = [option for parser in self._all() for option in parser._option_string_actions]  # noqa: SLF001
            for word in message.split():
                if word.startswith("--") and (hint := nearest(word.partition("=")[0], known)):
                    message += f"; did you mean {hint}?"
                    break
        super().error(message)

    def _all(self) -> list[argparse.ArgumentParser]:
        parsers: list[argparse.ArgumentParser] = [self]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - there is no other way to the subcommands
                parsers.extend(action.choices.values())
        return parsers
