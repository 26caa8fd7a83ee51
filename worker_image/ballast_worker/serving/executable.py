# SPDX-License-Identifier: Apache-2.0
"""Programs of the executable store in this process: loaded, fed and run, never traced, lowered or compiled.

The one module of serving that touches JAX's private interface, for uploads: `jax.device_put` costs eight times as much
for a small input, and without JAX's 64-bit mode it would silently narrow 64-bit inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

from ballast_contract.reasons import Reason
from ballast_worker.build.builder import BuiltProgram
from ballast_worker.build.executables import Executable, ExecutableError, deserialize
from ballast_worker.build.store import read_executable
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.layout import numpy_dtype
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.call import Array

try:
    from jax.core import ShapedArray
    from jaxlib._jax import batched_device_put
except ImportError as error:  # pragma: no cover - only outside the supported range
    raise ImportError(
        f"jax {jax.__version__} has no jaxlib._jax.batched_device_put: install a version with >=0.10,<0.12"
    ) from error


# Read when the first client is made, which this module's import precedes. Otherwise every execution on cpu goes through a
# thread of the runtime, which doubles what a small call costs; it has no effect on other backends.
cast("Any", jax.config).update("jax_cpu_enable_async_dispatch", False)  # untyped in some releases


class ProgramUnusableError(Exception):
    """An executable that cannot be loaded.

    Attributes:
        refusal: what to tell.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class LoadedProgram:
    """An executable and what its inputs look like.

    Attributes:
        shapes: of the inputs, which are the arguments after the weights.
        copies: inputs and outputs cross a link to the device; on cpu they are used in place.
    """

    __slots__ = ("_devices", "_executable", "_inputs", "_sharding", "copies", "shapes")

    def __init__(self, executable: Executable, *, inputs: int) -> None:
        types = executable.arguments[len(executable.arguments) - inputs :]
        self._executable = executable
        self._devices = [executable.device]
        self._sharding = jax.sharding.SingleDeviceSharding(executable.device)
        self._inputs = [ShapedArray(type_.shape, numpy_dtype(type_.dtype)) for type_ in types]
        self.copies = executable.device.platform != "cpu"
        self.shapes = [type_.shape for type_ in types]

    def upload(self, inputs: Sequence[Array]) -> list[jax.Array]:
        """Start to bring inputs of exactly these shapes to the device."""
        return [
            batched_device_put(type_, self._sharding, [array], self._devices, enable_x64=True)
            for type_, array in zip(self._inputs, inputs, strict=True)
        ]

    def enqueue(self, weights: Sequence[Any], inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Start one run, and the way back of its outputs behind it."""
        outputs = self._executable.enqueue([*weights, *inputs])
        if self.copies:
            for output in outputs:
                output.copy_to_host_async()
        return outputs

    def run_on_zeros(self, weights: Sequence[Any]) -> None:
        """One run on inputs that are zero, to its end.

        Raises:
            RuntimeError: it failed.
        """
        inputs = [np.zeros(type_.shape, type_.dtype) for type_ in self._inputs]
        for output in self._executable.enqueue([*weights, *self.upload(inputs)]):
            output.block_until_ready()


def load(program: BuiltProgram, device: jax.Device, *, inputs: int) -> LoadedProgram:
    """Load an executable of the store.

    Args:
        program: whose file and digest.
        device: where it will run.
        inputs: how many of its arguments are inputs of requests.

    Raises:
        ProgramUnusableError: the file is gone, is another than was built, or is refused by the runtime.
    """
    try:
        data = read_executable(program.file)
    except BundleError as error:
        why = getattr(error.__cause__, "strerror", None) or error
        raise _unusable(f"executable {program.file} cannot be read: {why}") from error
    if (digest := f"sha256:{hashlib.sha256(data).hexdigest()}") != program.digest:
        raise _unusable(f"executable {program.file} has digest {digest}, the builder wrote {program.digest}")
    try:
        return LoadedProgram(deserialize(data, device), inputs=inputs)
    except ExecutableError as error:
        raise _unusable(f"executable {program.file}: {error}") from error


def to_host(outputs: Sequence[jax.Array]) -> list[Array]:
    """Outputs as arrays on the host, after the end of the run that makes them."""
    return [np.asarray(output) for output in outputs]


def device_works(device: jax.Device) -> bool:
    """Whether the device still takes work after an execution failed: some errors stick to the process for good."""
    try:
        probe = np.zeros(1, np.uint8)
        jax.device_put(probe, device).block_until_ready()
    except RuntimeError:
        return False
    return True


def _unusable(message: str) -> ProgramUnusableError:
    return ProgramUnusableError(
        Refusal(Reason.LOAD_FAILED_WILL_RETRY, f"{message}; it is built again", retry_after_seconds=5.0)
    )
