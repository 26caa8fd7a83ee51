# SPDX-License-Identifier: Apache-2.0
"""What this process compiles for and with: the part of an executable's identity that is not the program."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ballast_worker.build.store import Runtime

COMPILER_ENVIRONMENT: Final = ("NVIDIA_TF32_OVERRIDE", "XLA_FLAGS")
"""Variables that change what the compiler makes of the same program."""

_CPU_FIELDS: Final = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")


def describe(backend: str, device_kind: str, environment: Mapping[str, str] = os.environ) -> Runtime:
    """The runtime of this process.

    Args:
        backend: cpu or cuda.
        device_kind: as the JAX client names the device; on cpu the processor's own features count instead.
        environment: of the process.
    """
    cuda = backend == "cuda"
    return Runtime(
        backend=backend,
        device_kind=device_kind if cuda else f"{platform.machine()}-{_cpu_digest()}",
        jax=importlib.metadata.version("jax"),
        jaxlib=importlib.metadata.version("jaxlib"),
        driver=_nvidia_driver() if cuda else "",
        libraries=_libraries() if cuda else (),
        flags=tuple((name, environment[name]) for name in COMPILER_ENVIRONMENT if environment.get(name)),
    )


def _cpu_digest() -> str:
    """A digest of the processor's features: code for one processor may be illegal on another."""
    lines: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _CPU_FIELDS:
            lines.setdefault(name.strip(), value.strip())
    return hashlib.sha256(repr(sorted(lines.items())).encode()).hexdigest()[:16]


def _nvidia_driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.splitlines()[0].strip()


def _libraries() -> tuple[tuple[str, str], ...]:
    found = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name.startswith(("nvidia-", "jax-cuda")):
            found[name] = distribution.version
    return tuple(sorted(found.items()))
