# SPDX-License-Identifier: Apache-2.0
"""Scratch of a run: the compiler's figure beside what the allocator saw, for programs of different kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ballast_worker.build.executables import deserialize, serialize
from ballast_worker.build.measure import Zeros, observed_scratch
from ballast_worker.control.models import Built
from benchmarks.gpu.setting import Setting


def measure(setting: Setting, built: Mapping[str, Built], emit: Callable[..., None]) -> None:
    """Emit scratch: bytes by program. The allocator of the CPU keeps no peak, so there is nothing beside the compiler's."""
    del built
    device = jax.devices(setting.backend)[0]
    side = setting.scale.columns
    square, image, kernel = (side, side), (2, side // 4, side // 4, 16), (3, 3, 16, 16)
    programs: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
        "sort": (lambda a: jnp.sort(a, axis=0).sum(), [square]),
        "matrix products": (lambda a, b: jnp.tanh(a @ b) @ b, [square, square]),
        "softmax of outer products": (lambda a: jax.nn.softmax(a[:, :, None] * a[:, None, :64]).sum(0), [square]),
        "convolutions": (_convolutions, [image, kernel]),
    }
    report = {}
    for name, (function, shapes) in programs.items():
        types: list[Any] = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]  # type: ignore[no-untyped-call]
        compiled = jax.jit(function, keep_unused=True).lower(*types).compile()
        static = compiled.memory_analysis()
        executable = deserialize(serialize(compiled), device)
        values = [Zeros(device)(type_) for type_ in executable.arguments]
        for _ in range(2):
            for result in executable.enqueue(values):
                result.block_until_ready()
        observed = observed_scratch(executable, values, device)
        report[name] = {
            "compiler_bytes": static.temp_size_in_bytes if static is not None else None,
            "observed_bytes": observed if device.memory_stats() else None,
        }
    emit(scratch=report)


def _convolutions(image: Any, kernel: Any) -> Any:
    for _ in range(3):
        image = jax.nn.relu(
            jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )
    return image
