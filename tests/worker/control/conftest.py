# SPDX-License-Identifier: Apache-2.0
"""Small real bundles, configurations and workers for the tests of control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.running_worker import Running
from helpers.small_bundles import pack_small

from ballast_contract.config import WorkerConfig
from ballast_worker.bundle.reader import Bundle
from ballast_worker.bundle.writer import pack_bundle

PORTS = dict.fromkeys(("http_port", "grpc_port", "metrics_port", "control_port", "introspection_port"), 0)


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return pack_small(tmp_path_factory.mktemp("bundles") / "small")


@pytest.fixture(scope="session")
def four(tmp_path_factory):
    """Four models of 4 MiB each; a budget of 16 MiB holds three."""
    root = tmp_path_factory.mktemp("four")
    return [pack_small(root / name, mebibytes=4, factor=index) for index, name in enumerate("abcd", start=1)]


@pytest.fixture(scope="session")
def hungry(tmp_path_factory):
    """Little weight, and 8 MiB of scratch in a run."""

    def function(parameters, x):
        wide = jnp.sort(jnp.repeat(x, 1 << 19, axis=1) * parameters["factor"][0], axis=1)
        return x * parameters["factor"] + wide[:, :1] * 0

    return pack_bundle(
        tmp_path_factory.mktemp("hungry") / "hungry",
        name="hungry",
        function=function,
        parameters={"factor": np.full(4, 5, np.float32)},
        inputs=[("x", np.float32, ("batch", 4))],
        batch_dimension="batch",
        max_batch=1,
        output_names=["y"],
    )


@pytest.fixture(scope="session")
def executables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One executable store for the whole run: equal bundles are built once."""
    return tmp_path_factory.mktemp("executables")


@pytest.fixture
def config_for(tmp_path, executables):
    """A worker's configuration: all ports free, everything below the test's directory."""

    def make(**sections) -> WorkerConfig:
        base = {
            "name": "w",
            "executable_store": str(executables),
            "state_directory": str(tmp_path / "state"),
            "device": {"budget": "32m"},
            "serving": {**PORTS, "host": "127.0.0.1", "grace_seconds": 15, **sections.pop("serving", {})},
            "host": {
                "directory": str(tmp_path / "shm"),
                "segment_bytes": "2m",
                "budget": "64m",
                **sections.pop("host", {}),
            },
        }
        return WorkerConfig.model_validate({**base, **sections})

    return make


@pytest.fixture
def start():
    """Start workers, with what `WorkerProcess` takes besides; they end with the test."""
    running = []

    def run(config: WorkerConfig, **given: Any) -> Running:
        worker = Running(config, **given)
        running.append(worker)
        return worker

    yield run
    for worker in running:
        worker.stop()
