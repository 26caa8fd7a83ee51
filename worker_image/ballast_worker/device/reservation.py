# SPDX-License-Identifier: Apache-2.0
"""Taking device memory as planned, once: XLA's pool, and the memory for weights, in an arena or in that pool."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

from ballast_contract.plan_lines import SCRATCH
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.backend import Backend
from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_pool import SimulatedPool
from ballast_worker.device.cpu import CpuBackend
from ballast_worker.device.memory import DeviceMemory
from ballast_worker.device.plan import Plan
from ballast_worker.device.xla_pool import POOL_GRAIN, XlaPool, take_pool

Allocator = Literal["arena", "bfc"]
"""What places weights on the device."""


@dataclass(frozen=True, slots=True)
class DeviceReservation:
    """What was taken: the jax.Device and the memory for weights."""

    device: Any
    memory: DeviceMemory


def pool_bytes(plan: Plan, allocator: Allocator) -> int:
    """Bytes of XLA's pool to ask for: scratch, and the weights where they share it, and then a grain more, since it is cut to
    whole ones.
    """
    return plan.line(SCRATCH) if allocator == "arena" else plan.line(SCRATCH) + plan.arena + POOL_GRAIN


def overhead_bytes(allocator: Allocator) -> int:
    """Bytes of a GPU that are taken beside scratch and weights; part of the plan's line `context`."""
    if allocator == "bfc":
        return POOL_GRAIN
    from ballast_worker.device.cuda import CudaBackend  # noqa: PLC0415 - only a worker on cuda has its packages

    return CudaBackend.overhead_bytes


def ring_bytes(kind: Literal["cpu", "cuda"], allocator: Allocator) -> int:
    """Page-locked host memory, in bytes, by way of which memory that is not page-locked is copied to the device."""
    if kind == "cpu" or allocator == "bfc":
        return 0
    from ballast_worker.device.cuda import RING_BYTES  # noqa: PLC0415 - only a worker on cuda has its packages

    return RING_BYTES


def reserve_device(
    plan: Plan, allocator: Allocator, *, kind: Literal["cpu", "cuda"], ordinal: int
) -> DeviceReservation:
    """Take what an accepted plan says. XLA's client is made here, so that its environment is set by now.

    Raises:
        DeviceError: the device does not have what was planned.
    """
    with contextlib.ExitStack() as undo:
        backend = _backend(kind, ordinal)
        undo.callback(backend.close)
        device = backend.device
        if allocator == "bfc":
            take_pool(device, plan.line(SCRATCH) + plan.arena)
            return DeviceReservation(device, _beside_scratch(plan, device))
        take_pool(device, plan.line(SCRATCH))
        memory = ArenaMemory(backend, plan.arena)
        undo.pop_all()
        return DeviceReservation(device, memory)


def _beside_scratch(plan: Plan, device: Any) -> BfcMemory:
    scratch = plan.line(SCRATCH)
    pool = SimulatedPool(scratch + plan.arena) if device.platform == "cpu" else XlaPool(device)
    return BfcMemory(pool, scratch=scratch)


def _backend(kind: Literal["cpu", "cuda"], ordinal: int) -> Backend:
    if kind == "cpu":
        return CpuBackend()
    from ballast_worker.device.cuda import CudaBackend  # noqa: PLC0415 - only a worker on cuda has its packages

    return CudaBackend(ordinal)
