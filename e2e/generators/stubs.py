# SPDX-License-Identifier: Apache-2.0
"""Python stubs of the protocols."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_CONTRACT = "worker_image/ballast_contract/v1"
_UNWANTED = "inference_pb2_grpc.py"
"""The inference service is served on raw bytes, so its generated handlers have no use."""


def outputs(root: Path) -> dict[str, str]:
    """Stubs by path, as protoc writes them."""
    protos = sorted(str(path) for path in (root / _CONTRACT).glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        kinds = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", "-I", str(root / "worker_image"), *kinds, *protos], check=True
        )
        return {
            f"worker_image/{path.relative_to(folder)}": path.read_text(encoding="utf-8")
            for path in sorted(Path(folder).rglob("*.py*"))
            if path.name != _UNWANTED
        }
