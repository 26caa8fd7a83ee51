# SPDX-License-Identifier: Apache-2.0
"""Bundles that are wrong in one way each, made in the model store beside the sample bundles."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ballast_worker.bundle.writer import pack_bundle


def small(path: Path, function: Callable[..., object], weights: np.ndarray) -> None:
    """A bundle of one weight and inputs of four numbers a row."""
    pack_bundle(
        path,
        name=path.name,
        function=function,
        parameters={"w": weights},
        inputs=[("x", "float32", ("batch", 4))],
        batch_dimension="batch",
        max_batch=1,
        output_names=["y"],
        overwrite=True,
    )


def good(path: Path) -> None:
    """A small bundle with nothing wrong."""
    small(path, lambda p, x: x @ p["w"], np.eye(4, dtype=np.float32))


def truncated_weights(path: Path) -> None:
    """The last bytes of the weights are missing."""
    good(path)
    weights = path / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])


def lying_manifest(path: Path) -> None:
    """The manifest says that rows have five numbers; the function takes four."""
    good(path)
    manifest = path / "manifest.yaml"
    text = manifest.read_text()
    assert "- 4" in text or "4]" in text
    manifest.write_text(text.replace("- 4", "- 5").replace("4]", "5]"))


def larger_than_the_device(path: Path) -> None:
    """480 MiB of weights for a device budget of 384 MiB."""
    small(path, lambda p, x: x @ p["w"][:4], np.zeros((120 << 20, 1), np.float32))


def compiler_killer(path: Path) -> None:
    """A chain of operations so deep that the compiler's recursion overflows its stack."""

    def deep(p: dict[str, object], x: object) -> object:
        for _ in range(20000):
            x = jnp.sin(x) * x
        return x @ p["w"]

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        small(path, deep, np.eye(4, dtype=np.float32))
    finally:
        sys.setrecursionlimit(limit)


def make(store: Path) -> None:
    """Make all of them below `store`, anew."""
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True)
    for build in (good, truncated_weights, lying_manifest, larger_than_the_device, compiler_killer):
        build(store / build.__name__.replace("_", "-"))
