# SPDX-License-Identifier: Apache-2.0
"""Real bundles, really compiled, and workers' front ends with them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.serving import DTYPES, Model, Rig, Server, TableCatalog

from ballast_contract.config import Serving
from ballast_worker.build.builder import BuiltProgram
from ballast_worker.build.executables import serialize
from ballast_worker.bundle.dimensions import program_name
from ballast_worker.bundle.layout import numpy_dtype
from ballast_worker.bundle.writer import pack_bundle
from ballast_worker.serving.frontend import Frontend, run_in_thread


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    """Pack a function and compile its programs here, as the builder does in a process of its own."""

    def make(name: str, function: Callable[..., Any], parameters: Any, **manifest: Any) -> Model:
        directory = tmp_path_factory.mktemp("bundles")
        with jax.enable_x64(True):
            bundle = pack_bundle(
                directory / name, name=name, function=function, parameters=parameters, platforms=("cpu",), **manifest
            )
            exported = jax.export.deserialize(bytearray(bundle.function_bytes()))
            weights = [placed.spec for placed in bundle.layout.tensors]
            programs = [
                compile_program(exported, bundle.manifest, weights, program, directory)
                for program in bundle.manifest.canonical_programs()
            ]
        return Model(bundle, tuple(programs), function, parameters)

    return make


def compile_program(exported, manifest, weights, program, directory) -> BuiltProgram:
    types = [
        jax.ShapeDtypeStruct(spec.shape, numpy_dtype(spec.dtype))
        for spec in (*weights, *(port.concrete(program) for port in manifest.inputs))
    ]
    data = serialize(jax.jit(exported.call, keep_unused=True).lower(*types).compile())
    file = directory / f"{manifest.name}-{program_name(program)}.executable"
    file.write_bytes(data)
    return BuiltProgram(
        dimensions=tuple(sorted(program.items())),
        file=file,
        digest=f"sha256:{hashlib.sha256(data).hexdigest()}",
        scratch_bytes=0,
        io_bytes=0,
        code_bytes=0,
        run_seconds=0.001,  # equal, so that how calls are put together does not depend on how busy the machine is
    )


def _affine(parameters: Any, x: Any) -> Any:
    return {"y": jnp.tanh(x @ parameters["w"] + parameters["b"])}


def _affine_parameters(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"w": random.normal(size=(8, 4)).astype(np.float32), "b": random.normal(size=4).astype(np.float32)}


@pytest.fixture(scope="session")
def affine(make_model: Callable[..., Model]) -> Model:
    """`y = tanh(x @ w + b)`, 8 to 4, for batches 1, 4 and 8."""
    return make_model(
        "affine",
        _affine,
        _affine_parameters(1),
        inputs=[("x", np.float32, ("batch", 8))],
        batch_dimension="batch",
        programs=[{"batch": 1}, {"batch": 4}, {"batch": 8}],
    )


@pytest.fixture(scope="session")
def affine_v2(make_model: Callable[..., Model]) -> Model:
    """The same function with other weights: a new version of `affine`."""
    return make_model(
        "affine",
        _affine,
        _affine_parameters(2),
        inputs=[("x", np.float32, ("batch", 8))],
        batch_dimension="batch",
        programs=[{"batch": 1}, {"batch": 4}, {"batch": 8}],
    )


@pytest.fixture(scope="session")
def sequence(make_model: Callable[..., Model]) -> Model:
    """Two dimensions and two inputs; the second output has an axis that is an expression."""

    def function(parameters: Any, tokens: Any, mask: Any) -> Any:
        scaled = parameters["scale"] * tokens * mask
        return {"scaled": scaled, "doubled": jnp.repeat(scaled, 2, axis=1), "total": scaled.sum(axis=1)}

    return make_model(
        "sequence",
        function,
        {"scale": np.float32(3.0)},
        inputs=[("tokens", np.float32, ("batch", "length")), ("mask", np.float32, ("batch", "length"))],
        batch_dimension="batch",
        programs=[{"batch": 1, "length": 16}, {"batch": 4, "length": 16}, {"batch": 2, "length": 64}],
    )


@pytest.fixture(scope="session")
def typed(make_model: Callable[..., Model]) -> Model:
    """An input and an output of every dtype that the protocol can carry, without dimensions."""

    def function(parameters: Any, *inputs: Any) -> Any:
        del parameters
        return {
            f"out_{dtype}": ~value if dtype == "bool" else value + value.dtype.type(1)
            for dtype, value in zip(DTYPES, inputs, strict=True)
        }

    return make_model("typed", function, {}, inputs=[(f"in_{dtype}", _dtype(dtype), (2, 3)) for dtype in DTYPES])


def _dtype(name: str) -> Any:
    return jnp.bfloat16 if name == "bfloat16" else np.dtype(name)


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(**options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.engine.stop()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


@pytest.fixture(scope="module")
def make_server() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(
        models: dict[str, Model],
        *,
        config: dict[str, Any] | None = None,
        patience_seconds: float = 0.0,
        **options: Any,
    ) -> Server:
        rig = Rig(clock=time.monotonic, **options)
        rig.clock = time.monotonic
        for name, model in models.items():
            assert rig.add(name, model) is None
        catalog = TableCatalog(rig.engine)
        settings = Serving.model_validate({"host": "127.0.0.1", "http_port": 0, "grpc_port": 0, **(config or {})})
        front = Frontend(settings, rig.engine, catalog, patience_seconds=patience_seconds)
        servers.append(Server(rig, catalog, run_in_thread(front)))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()
        server.rig.engine.stop()


@pytest.fixture(scope="module")
def server(make_server: Callable[..., Server], affine: Model, sequence: Model, typed: Model) -> Server:
    return make_server({"affine": affine, "team.a/affine": affine, "sequence": sequence, "typed": typed})
