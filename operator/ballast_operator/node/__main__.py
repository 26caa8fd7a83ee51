# SPDX-License-Identifier: Apache-2.0
"""`python -m ballast_operator.node`: run by pods of the operator's image, never by a person. It imports no more than it
needs, because workers wait for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ballast_operator.node.folder import FolderError, prepare, remove


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="ballast_operator.node", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "remove"):
        command = commands.add_parser(name, allow_abbrev=False)
        command.add_argument("pools", type=Path, help="folder of all pools of the node")
        command.add_argument("name", help="of the pool")
        if name == "prepare":
            command.add_argument("--group", type=int, required=True, help="id of the group that shares the pool")
            command.add_argument("--file-mode", required=True, help="permission bits of its files, octal")
    given = parser.parse_args(arguments)
    try:
        if given.command == "prepare":
            prepare(given.pools, given.name, group=given.group, file_mode=int(given.file_mode, 8))
        else:
            remove(given.pools, given.name)
    except FolderError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
