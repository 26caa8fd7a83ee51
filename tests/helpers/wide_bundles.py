# SPDX-License-Identifier: Apache-2.0
"""Bundles whose runs need scratch, packed in a process of their own that leaves the GPU alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ballast_worker.bundle.writer import pack_bundle

ROWS = 8
MIB = 1 << 20


def scratch_of(mebibytes: int) -> int:
    """Bytes of the hidden layer that a run keeps."""
    return 4 * ROWS * _width(mebibytes)


def pack_wide(path: Path, *, mebibytes: int, factor: float) -> None:
    """`y = x * factor`, beside a wide hidden layer whose weights are of so many MiB."""
    subprocess.run(
        [sys.executable, "-m", "helpers.wide_bundles", str(path), str(mebibytes), str(factor)],
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def _width(mebibytes: int) -> int:
    return mebibytes * MIB // 4 // 8


def _pack(path: Path, mebibytes: int, factor: float) -> None:
    def function(parameters, x):
        hidden = jnp.repeat(x, ROWS, axis=0) @ parameters["up"]
        return x * parameters["factor"] + jnp.sum(hidden @ parameters["down"]) * 0

    width = _width(mebibytes)
    pack_bundle(
        path,
        name=path.name,
        function=function,
        parameters={
            "factor": np.full(4, factor, np.float32),
            "up": np.zeros((4, width), np.float32),
            "down": np.zeros((width, 4), np.float32),
        },
        inputs=[("x", np.float32, ("batch", 4))],
        batch_dimension="batch",
        max_batch=1,
        output_names=["y"],
    )


if __name__ == "__main__":
    _pack(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
