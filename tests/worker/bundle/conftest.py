# SPDX-License-Identifier: Apache-2.0
"""A small real bundle, packed once and copied for each test that may damage it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from ballast_worker.bundle.digests import bytes_digest
from ballast_worker.bundle.writer import pack_bundle


def small_function(parameters, x, mask):
    """An affine map, masked and summed over the sequence."""
    hidden = jnp.tanh(x @ parameters["first"]["kernel"] + parameters["first"]["bias"].astype(jnp.float32))
    return {"hidden": hidden, "pooled": (hidden * mask[..., None]).sum(1)}


def small_arguments(seed: int = 0) -> dict:
    """Arguments of `pack_bundle` for `small_function`, without the path."""
    random = np.random.default_rng(seed)
    return {
        "name": "small",
        "function": small_function,
        "parameters": {
            "first": {
                "kernel": random.standard_normal((40, 30)).astype(np.float32),
                "bias": jnp.asarray(random.standard_normal(30), jnp.bfloat16),
            }
        },
        "inputs": [("x", "float32", ("batch", "sequence", 40)), ("mask", "int32", ("batch", "sequence"))],
        "batch_dimension": "batch",
        "programs": [{"batch": 1, "sequence": 8}, {"batch": 2, "sequence": 8}],
    }


@pytest.fixture(scope="session")
def packed(tmp_path_factory) -> Path:
    """A valid bundle; nobody changes it."""
    return pack_bundle(tmp_path_factory.mktemp("bundles") / "small", **small_arguments()).path


@pytest.fixture
def bundle_path(packed, tmp_path) -> Path:
    """A copy of the valid bundle that the test may change."""
    return shutil.copytree(packed, tmp_path / "bundle")


@pytest.fixture
def edit(bundle_path) -> Callable[..., None]:
    """Change the manifest's document with a function, and make its sizes and digests of the files right on request."""

    def change(function=None, *, refresh_function: bytes | None = None) -> None:
        path = bundle_path / "manifest.yaml"
        document = yaml.safe_load(path.read_text())
        if refresh_function is not None:
            (bundle_path / "function.stablehlo").write_bytes(refresh_function)
            document["function"].update(bytes=len(refresh_function), digest=bytes_digest(refresh_function))
        if function is not None:
            function(document)
        path.write_text(yaml.safe_dump(document, sort_keys=False))

    return change
