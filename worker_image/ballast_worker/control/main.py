# SPDX-License-Identifier: Apache-2.0
"""`ballast-worker`: serve, or look at what a worker would do or does."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from ballast_contract import __version__
from ballast_contract.command_line import Parser
from ballast_contract.config import ConfigError, WorkerConfig
from ballast_contract.loading import load, unread_variables
from ballast_worker.control import logs

_log = logging.getLogger(__name__)

EXIT_USAGE: Final = 2

_EXAMPLES: Final = """\
examples:
  ballast-worker --config worker.yaml          serve what the file says
  ballast-worker plan --config worker.yaml     the memory plans that a start would use
  ballast-worker check-config worker.yaml      is the file right? prints it with every default
  ballast-worker explain --model minilm        why was it loaded, evicted or refused? (asks the running worker)
  ballast-worker regions                       which host copies are there?

Every key of the file may also come from the environment: BALLAST_DEVICE_BUDGET=48g is device.budget.
"""

_REGIONS: Final = """\
examples:
  ballast-worker regions                        the copies of the configured pool; no worker has to run
  ballast-worker regions --config worker.yaml   of the pool that this file names
  ballast-worker regions --json                 with digests, pages and times
  ballast-worker regions --remove DIR           free the memory of a pool that nobody needs any more

The exit code of --remove is 0 when there is no pool in DIR any more, and 1 when a process uses it or it cannot be removed.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parsed = command_line().parse_args(arguments)
    command = parsed.command or "serve"
    try:
        config = load(getattr(parsed, "file", None) or parsed.config, os.environ)
    except ConfigError as error:
        sys.stderr.write(f"ballast-worker: {error}\n")
        return EXIT_USAGE
    if command == "serve":
        logs.configure(level=config.log_level)
    for sentence in unread_variables(os.environ):
        _log.warning("%s", sentence)
    if command == "serve":
        return _serve(config, sys.argv[1:] if arguments is None else arguments)
    from ballast_worker.control import commands  # noqa: PLC0415 - serving does not need it

    code: int = commands.run(command, config, parsed)
    return code


def _serve(config: WorkerConfig, arguments: Sequence[str]) -> int:
    prepare_process(config)
    from ballast_worker.control.process import WorkerProcess  # noqa: PLC0415 - imports JAX
    from ballast_worker.control.worker import EXIT_PLAN_ANEW  # noqa: PLC0415

    try:
        process = WorkerProcess(config)
    except OSError as error:
        sys.stderr.write(f"ballast-worker: {error}\n")
        return EXIT_USAGE
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.worker.terminate())
    code = process.run()
    logging.shutdown()
    sys.stderr.flush()
    if code == EXIT_PLAN_ANEW:
        os.execv(sys.executable, [sys.executable, "-m", "ballast_worker.control.main", *arguments])  # noqa: S606
    # At once: threads that wait for a file system, or the runtime's own, must not hold up the end.
    os._exit(code)


def prepare_process(config: WorkerConfig) -> None:
    """What has to be set before JAX is imported: the platform, full integer width, short turns of Python threads."""
    os.environ["JAX_PLATFORMS"] = config.backend
    os.environ["JAX_ENABLE_X64"] = "1"
    # Beside one busy Python thread a 0.1 ms execution takes 10 ms at the default interval.
    sys.setswitchinterval(1e-4)


def command_line() -> Parser:
    """The parser of its arguments."""
    parser = Parser(
        prog="ballast-worker",
        description="Serves many models on one device: weights are swapped in from host memory when they are called.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file (YAML); without one, defaults")
    parser.add_argument("--version", action="version", version=f"ballast-worker {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    commands.add_parser("serve", help="serve until terminated (the default)", allow_abbrev=False)
    plan = commands.add_parser(
        "plan", help="print the plans of device and host memory that a start would use", allow_abbrev=False
    )
    plan.add_argument("--json", action="store_true", help="as JSON")
    check = commands.add_parser(
        "check-config", help="check a configuration file and print it in full", allow_abbrev=False
    )
    check.add_argument("file", type=Path, metavar="FILE", nargs="?", help="instead of --config")
    explain = commands.add_parser("explain", help="the last decisions of a running worker", allow_abbrev=False)
    explain.add_argument("--model", default="", metavar="NAME", help="only of this model")
    explain.add_argument("--limit", type=_count, default=20, metavar="N", help="how many (default 20)")
    explain.add_argument("--json", action="store_true", help="as JSON")
    regions = commands.add_parser(
        "regions",
        help="the host copies on this node",
        epilog=_REGIONS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    regions.add_argument("--json", action="store_true", help="as JSON")
    regions.add_argument(
        "--remove", type=_directory, metavar="DIR", help="remove the host pool in DIR, unless a process uses it"
    )
    for command in commands.choices.values():
        # Behind a command too; what is not given there must not hide what was given before it.
        command.add_argument(
            "--config", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="as before the command"
        )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return int(text)


def _directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty text names no directory")
    return Path(text)


def run() -> NoReturn:
    """Entry for `python -m`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
