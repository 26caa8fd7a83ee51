# SPDX-License-Identifier: Apache-2.0
"""Packing the models of a setting and building them, once for all parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from ballast_worker.build.builder import BuildRequest, BuiltProgram
from ballast_worker.build.local import LocalBuilder
from ballast_worker.build.store import ExecutableStore
from ballast_worker.bundle.reader import open_bundle
from ballast_worker.control.models import Built
from benchmarks.gpu.setting import GIB, ModelSize, Setting
from benchmarks.report import progress

COMPUTE: Final = "compute"
"""The model that executes without pause while others load: a matrix product; its input is tiny."""

INPUTS: Final = "inputs"
"""The model whose requests bring large inputs from the host."""

_BUILDERS: Final = 8
_BUILDER_BYTES: Final = 12 * GIB
_BUILD_SECONDS: Final = 240.0


def pack(setting: Setting) -> None:
    """Write the bundles. Imports JAX."""
    import numpy as np  # noqa: PLC0415

    from ballast_worker.bundle.writer import pack_bundle  # noqa: PLC0415

    def first_elements(parameters: Any, x: Any) -> Any:
        return x + sum(tensor[0] for layer in parameters for tensor in layer.values())

    def square(parameters: Any, x: Any) -> Any:
        return ((parameters["weight"] * x[0]) @ parameters["weight"]).sum(axis=1)

    def product(parameters: Any, x: Any) -> Any:
        return (x @ parameters["weight"]).sum(axis=1)

    def write(name: str, function: Callable[..., Any], parameters: Any, shape: tuple[int, ...]) -> None:
        pack_bundle(
            setting.bundle(name),
            name=name,
            function=function,
            parameters=parameters,
            inputs=[("x", np.float32, shape)],
            platforms=[setting.backend],
            output_names=["y"],
        )

    def one(size: ModelSize) -> None:
        progress(f"packing {size.name}, {size.nbytes / 1e6:,.1f} MB")
        write(size.name, first_elements, _layers(size), (4,))

    scale = setting.scale
    with ThreadPoolExecutor() as pool:
        list(pool.map(one, scale.sizes().values()))
    weight = {"weight": np.full((scale.columns, scale.columns), 2.0**-10, np.float32)}
    write(COMPUTE, square, weight, (4,))
    write(INPUTS, product, weight, (scale.input_rows, scale.columns))


def _layers(size: ModelSize) -> list[dict[str, Any]]:
    """Two large tensors, four a quarter as large and three tiny ones per layer, as in a transformer. All zeros: a link
    does not look at what it carries.
    """
    import numpy as np  # noqa: PLC0415

    tiny = 1024
    quarter = max(1, (size.nbytes // 4 // size.layers - 3 * tiny) // 12)
    zeros = {count: np.zeros(count, np.float32) for count in (tiny, quarter, 4 * quarter)}
    shapes = {
        **{f"projection_{index}": 4 * quarter for index in range(2)},
        **{f"attention_{index}": quarter for index in range(4)},
        **{f"norm_{index}": tiny for index in range(3)},
    }
    return [{name: zeros[count] for name, count in shapes.items()} for _ in range(size.layers)]


def builder(setting: Setting) -> LocalBuilder:
    """The worker's own builder, with a store in the setting's folder."""
    return LocalBuilder(ExecutableStore(setting.folder / "executables"), parallelism=_BUILDERS)


def build_one(builder: LocalBuilder, setting: Setting, name: str, *, memory_bytes: int = _BUILDER_BYTES) -> Built:
    """Build one bundle in a process of its own, with so much device memory.

    Raises:
        RuntimeError: it could not be built.
    """
    progress(f"building {name}")
    bundle = open_bundle(setting.bundle(name))
    programs = tuple(tuple(sorted(program.items())) for program in bundle.manifest.canonical_programs())
    request = BuildRequest(bundle.path, bundle.digest, programs, setting.backend, 0, memory_bytes, _BUILD_SECONDS)
    result = builder.build(request, progress=lambda _: None)
    if result.failure is not None:
        raise RuntimeError(f"{name}: {result.failure.message}")
    return Built(bundle, result.programs, result.context_bytes)


def build(setting: Setting) -> dict[str, Built]:
    """Build every bundle. What the driver takes is measured by a builder that is alone.

    Raises:
        RuntimeError: one of them could not be built.
    """
    one = partial(build_one, builder(setting), setting)
    alone = one(COMPUTE)  # first, which tells the others what the device is
    names = [INPUTS, *setting.scale.sizes()]
    with ThreadPoolExecutor(_BUILDERS) as pool:
        others = dict(zip(names, pool.map(one, names), strict=True))
    return {
        COMPUTE: alone,
        **{name: Built(built.bundle, built.programs, alone.context_bytes) for name, built in others.items()},
    }


def keep(setting: Setting, built: Mapping[str, Built]) -> None:
    """Write down what was built, for the processes of the parts."""
    document = {
        name: {"context_bytes": one.context_bytes, "programs": [asdict(program) for program in one.programs]}
        for name, one in built.items()
    }
    (setting.folder / "built.json").write_text(json.dumps(document, default=str))


def kept(setting: Setting) -> dict[str, Built]:
    """What `keep` wrote."""
    document = json.loads((setting.folder / "built.json").read_text())
    return {
        name: Built(
            open_bundle(setting.bundle(name)),
            tuple(_program(program) for program in one["programs"]),
            one["context_bytes"],
        )
        for name, one in document.items()
    }


def _program(fields: dict[str, Any]) -> BuiltProgram:
    dimensions = tuple((str(name), int(value)) for name, value in fields["dimensions"])
    return BuiltProgram(**{**fields, "dimensions": dimensions, "file": Path(fields["file"])})
