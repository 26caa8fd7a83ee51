# SPDX-License-Identifier: Apache-2.0
"""What the device is, asked before anything is allocated on it; never starts a JAX client.

What cannot be known is None: the driver's figures count every process on the device, so that they say something about
this one only when it is alone there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ballast_worker.device import nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One device as found at start; bytes.

    Attributes:
        kind: which backend it is for.
        name: as the driver calls it.
        uuids: its identifiers, in the spellings that the management library may know.
        total_bytes: of device memory; None on cpu.
        free_bytes: now; None when not known, and on cpu.
        used_before_bytes: used before the first context of this process, by everyone; None when not known.
        other_processes: that compute on it; None when not known.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    uuids: tuple[str, ...] = ()
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_before_bytes: int | None = None
    other_processes: int | None = None

    def at(self, usage: nvml.Usage | None) -> DeviceFacts:
        """The same device at another moment before this process has a context on it."""
        return replace(
            self,
            free_bytes=usage.free if usage else None,
            used_before_bytes=usage.used if usage else None,
            other_processes=usage.processes if usage else None,
        )


def describe(backend: Literal["cpu", "cuda"], ordinal: int) -> DeviceFacts:
    """The facts of a device. To be called before this process has a context on it.

    Raises:
        DeviceUnavailableError: the driver, the device or a library is missing.
    """
    if backend == "cpu":
        return DeviceFacts(kind="cpu", name="cpu")
    from ballast_worker.device.cuda import identify  # noqa: PLC0415 - only a worker on cuda has its packages

    identity = identify(ordinal)
    found = DeviceFacts(kind="cuda", name=identity.name, uuids=identity.uuids, total_bytes=identity.total_bytes)
    return found.at(nvml.usage(identity.uuids))


def driver_used(
    facts: DeviceFacts, *, usage: Callable[[tuple[str, ...]], nvml.Usage | None] = nvml.usage
) -> int | None:
    """The driver's figure for this process, in bytes: used now minus used before our first context.

    None unless we were alone on the device then and are now.

    Args:
        facts: as they were then.
        usage: what is used now on the device with these identifiers.
    """
    if facts.used_before_bytes is None or facts.other_processes:
        return None
    now = usage(facts.uuids)
    if now is None or now.processes > 1:
        return None
    return max(0, now.used - facts.used_before_bytes)
