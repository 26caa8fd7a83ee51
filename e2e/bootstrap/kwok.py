# SPDX-License-Identifier: Apache-2.0
"""kwok, which plays kubelets for the operator's benchmark: a Go module of its own, since it needs another Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from e2e.bootstrap.binaries import Program, compile_programs
from e2e.bootstrap.keys import Keys, key_of
from e2e.bootstrap.toolchain import go_compiler
from e2e.bootstrap.tools import Home, output_of
from e2e.cluster.console import timed

MODULE: Final = Path(__file__).resolve().parent / "go-kwok"

_KWOK: Final = Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", "kwok")
_FLAGS: Final = "-s -w"


def build(home: Home) -> None:
    """Build kwok unless it is there."""
    go = go_compiler(home, module=MODULE / "go.mod")
    version = output_of(go, "env", "GOVERSION")
    keys, key = Keys(home.keys), key_of(version, _FLAGS, MODULE / "go.mod", MODULE / "go.sum")
    if keys.fresh(home.bin / _KWOK.name, key):
        return
    with timed(f"binaries: {_KWOK.name} with {version}"):
        compile_programs(home, go, [_KWOK], _FLAGS, module=MODULE)
    keys.record(home.bin / _KWOK.name, key)
