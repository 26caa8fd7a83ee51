#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write every generated file: gRPC stubs, CRDs, the chart's roles, values schema and dashboards, reference documents.

Each has one source: the .proto files, the API models, the operator's permissions, the chart's values.yaml, the worker's
configuration, the list of reasons, the metrics in the code, the parsers of the commands.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator"), str(ROOT / "worker_image")]

from e2e.generators import (  # noqa: E402 - found through the path above
    commands,
    crds,
    dashboards,
    metrics,
    reference,
    roles,
    stubs,
    values,
)


def outputs() -> dict[Path, str]:
    """Every generated file with what belongs into it."""
    parts = (stubs, crds, roles, values, dashboards, reference, metrics, commands)
    return {ROOT / name: text for part in parts for name, text in part.outputs(ROOT).items()}


def differences(wanted: dict[Path, str]) -> list[str]:
    """A unified diff for each file that is not what it should be."""
    found = []
    for path, text in sorted(wanted.items()):
        have = path.read_text(encoding="utf-8") if path.exists() else ""
        if have != text:
            name = str(path.relative_to(ROOT))
            diff = difflib.unified_diff(have.splitlines(), text.splitlines(), name, f"{name} (generated)", lineterm="")
            found.append("\n".join(list(diff)[:40]))
    return found


def main() -> int:
    """Write the files, or with --check say which are stale; 0 when all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not up to date")
    check = parser.parse_args().check
    wanted = outputs()
    stale = differences(wanted)
    if check:
        print("\n".join([*stale, "run `make generate`"]) if stale else "every generated file is up to date")
        return 1 if stale else 0
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{len(wanted)} files, {len(stale)} of them changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
