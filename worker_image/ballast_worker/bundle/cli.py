# SPDX-License-Identifier: Apache-2.0
"""`ballast-bundle`: pack a JAX function as a bundle, show what a bundle holds, and verify every byte of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ballast_contract import __version__
from ballast_contract.command_line import Parser
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.faults import did_you_mean
from ballast_worker.bundle.reader import open_bundle
from ballast_worker.bundle.show import document, size, table

EXAMPLES = """\
examples:
  ballast-bundle pack my_models.encoder:bundle --out ./encoder
  ballast-bundle pack ./encoder.py:bundle --out ./encoder --set layers=6 --overwrite
  ballast-bundle inspect ./encoder
  ballast-bundle inspect ./encoder --json | jq .digest
  ballast-bundle verify ./encoder
"""

PACK_HELP = """\
Calls FACTORY, which returns the keyword arguments of ballast_worker.bundle.writer.pack_bundle as a dict:

  def bundle(layers="6"):
      return dict(name="encoder", function=encode, parameters=load(int(layers)),
                  inputs=[("input_ids", "int32", ("batch", 128))], batch_dimension="batch", max_batch=8)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 when a bundle is wrong, 2 when the command or a factory is."""
    parser = command_line()
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands = ("pack", "inspect", "verify")
    if given and not given[0].startswith("-") and given[0] not in commands:
        parser.error(f"unknown command {given[0]!r}: {did_you_mean(given[0], commands)}")
    options = parser.parse_args(given)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except BundleError as error:
        print(f"{error.reason}: {error}", file=sys.stderr)
        return 1


def command_line() -> Parser:
    """The parser of its arguments."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="ballast-bundle", description=__doc__, epilog=EXAMPLES, formatter_class=raw, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"ballast-bundle {__version__}")
    commands = parser.add_subparsers(required=True, metavar="{pack,inspect,verify}", parser_class=Parser)

    pack = commands.add_parser(
        "pack",
        help="pack a JAX function",
        description=PACK_HELP,
        epilog=EXAMPLES,
        formatter_class=raw,
        allow_abbrev=False,
    )
    pack.add_argument(
        "factory", metavar="MODULE:FACTORY", help="importable module, or path of a .py file, and a function in it"
    )
    pack.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="directory of the bundle, made by this command"
    )
    pack.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a bundle or an empty directory at DIR; anything else is left alone",
    )
    pack.add_argument(
        "--set",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        help="text passed to FACTORY as an argument",
    )
    pack.set_defaults(run=_pack)

    inspect = commands.add_parser(
        "inspect", help="show what a bundle holds", epilog=EXAMPLES, formatter_class=raw, allow_abbrev=False,
        description="Reads manifest, function and the header of the weights; neither JAX nor the weights are loaded.",
    )  # fmt: skip
    inspect.add_argument("directory", metavar="DIR", type=Path, help="directory of the bundle")
    inspect.add_argument("--json", action="store_true", help="print one JSON document, with every tensor")
    inspect.set_defaults(run=_inspect)

    verify = commands.add_parser(
        "verify", help="check every byte", epilog=EXAMPLES, formatter_class=raw, allow_abbrev=False,
        description="Checks manifest, headers, the exported function and all digests. Exit code 1 and a reason when wrong.",
    )  # fmt: skip
    verify.add_argument("directory", metavar="DIR", type=Path, help="directory of the bundle")
    verify.add_argument("--quiet", action="store_true", help="print nothing when all is well")
    verify.set_defaults(run=_verify)
    return parser


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _pack(options: argparse.Namespace) -> int:
    from ballast_worker.bundle import pack_command  # noqa: PLC0415 - the other commands need no JAX, or load it later

    try:
        bundle = pack_command.pack(options.factory, dict(options.set), options.out, overwrite=options.overwrite)
    except pack_command.PackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(bundle))
    return 0


def _inspect(options: argparse.Namespace) -> int:
    bundle = open_bundle(options.directory)
    if options.json:
        print(json.dumps(document(bundle), indent=2))
    else:
        print(table(bundle))
    return 0


def _verify(options: argparse.Namespace) -> int:
    bundle = open_bundle(options.directory, check_function=True)
    if not options.quiet:
        print(f"manifest and headers fit together; {bundle.manifest.function.file} is what they say", flush=True)
    total = bundle.layout.nbytes
    progress = not options.quiet and sys.stdout.isatty()
    with bundle.open_weights() as weights:
        for offset, piece in weights.chunks(bundle.layout, 16 << 20):
            if progress:
                print(f"\rweights: {100 * (offset + len(piece)) // total} % of {size(total)}", end="", flush=True)
    if progress:
        print()
    if not options.quiet:
        print(f"weights digest {bundle.manifest.weights.digest} is right")
        print(f"{bundle.path}: ok, digest {bundle.digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
