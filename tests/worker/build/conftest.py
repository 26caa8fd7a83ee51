# SPDX-License-Identifier: Apache-2.0
"""Small real bundles and a store for the tests of the builder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from ballast_worker.build.builder import BuildRequest
from ballast_worker.build.store import ExecutableStore
from ballast_worker.bundle.reader import Bundle
from ballast_worker.bundle.writer import pack_bundle


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """`tanh(x @ w + b)` for batches 1, 2 and 4."""

    def function(parameters, x):
        return jnp.tanh(x @ parameters["w"] + parameters["b"])

    return pack_bundle(
        tmp_path_factory.mktemp("bundles") / "small",
        name="small",
        function=function,
        parameters={"w": np.eye(8, dtype=np.float32), "b": np.full(8, 0.5, np.float32)},
        inputs=[("x", np.float32, ("batch", 8))],
        batch_dimension="batch",
        max_batch=4,
        output_names=["y"],
    )


@pytest.fixture
def store(tmp_path: Path) -> ExecutableStore:
    return ExecutableStore(tmp_path / "executables")


@pytest.fixture
def request_for() -> Callable[..., BuildRequest]:
    def make(bundle: Bundle, *, timeout_seconds: float = 120.0) -> BuildRequest:
        return BuildRequest(
            bundle=bundle.path,
            digest=bundle.digest,
            programs=tuple(tuple(sorted(p.items())) for p in bundle.manifest.canonical_programs()),
            backend="cpu",
            ordinal=0,
            memory_bytes=1 << 30,
            timeout_seconds=timeout_seconds,
        )

    return make
