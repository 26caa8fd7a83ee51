# SPDX-License-Identifier: Apache-2.0
"""The device and the host memory of this worker: what is there, and how it is taken once the plan is accepted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from ballast_contract.config import WorkerConfig
from ballast_contract.reasons import Reason
from ballast_worker.control import hostbudget
from ballast_worker.control.hostbudget import HostFacts
from ballast_worker.control.hostplan import HostInputs, HostPlan, make_host_plan
from ballast_worker.control.models import Failure
from ballast_worker.control.parts import Parts, reserve
from ballast_worker.control.settings import SettingError
from ballast_worker.device import nvml, settling
from ballast_worker.device.backend import DeviceError, DeviceUnavailableError
from ballast_worker.device.budget import Budget, BudgetError, resolve
from ballast_worker.device.plan import Plan
from ballast_worker.device.probe import DeviceFacts, describe, driver_used
from ballast_worker.device.reservation import Allocator, overhead_bytes, pool_bytes, ring_bytes
from ballast_worker.host.pool import HostPool, HostPoolError, PageLocker
from ballast_worker.host.stream import RING_BYTES
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.call import ServableModel
from ballast_worker.serving.catalog import Catalog
from ballast_worker.serving.journal import Journal

CONTEXT_BYTES: Final = {"cpu": 0, "cuda": 768 << 20}
"""Planned for driver context and libraries until a builder has measured them."""

_DRIVER_SECONDS: Final = 5.0

_LOCKED_SHARE: Final = 512
"""The driver takes 2 MiB of device memory per GiB of page-locked host memory."""


class Machine:
    """The device as found at start, before anything was allocated on it.

    Args:
        config: of the worker.
        describe: the facts of the device for a backend and an ordinal.
        usage: what is used on the device with these identifiers, as its driver tells.
        beside: device memory that an allocator takes beside scratch and weights, in bytes.
        host: the facts of host memory for a directory of the host pool.
        clock: monotonic seconds.

    Attributes:
        budget: device memory of the whole process.
        context: planned for driver context and libraries, in bytes.
        fault: why the device cannot be used at all, or None.
        settled: what others were about to give back has been waited for.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        describe: Callable[[Literal["cpu", "cuda"], int], DeviceFacts] = describe,
        usage: Callable[[tuple[str, ...]], nvml.Usage | None] = nvml.usage,
        beside: Callable[[Allocator], int] = overhead_bytes,
        host: Callable[[Path], HostFacts] = hostbudget.describe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._usage, self._beside, self._clock = config, usage, beside, clock
        self._host = host
        self._used: int | None = None
        self._used_at: float | None = None
        self._facts = DeviceFacts(kind=config.backend, name="")
        self._touched = False
        self._pool_bytes: int | None = None  # of XLA's pool, which a process takes once and never gives back
        self.budget = Budget(0, "the device cannot be used", "unset")
        self.context = CONTEXT_BYTES[config.backend]
        self.fault: Failure | None = None
        try:
            self._facts = describe(config.backend, config.device.ordinal)
            self.budget = resolve(config.device.budget, config.device.reserve, self._facts)
        except DeviceUnavailableError as error:
            self.fault = Failure(Reason.INSUFFICIENT_DEVICE_MEMORY, f"the device cannot be used: {error}")
        except BudgetError as error:
            self.fault = Failure(Reason.INVALID_SPEC, str(error))
        self.settled = self.fault is not None or config.backend == "cpu"

    def settle(self, *, pause: Callable[[float], bool], say: Callable[[str], None]) -> None:
        """Wait for device memory that others are about to give back; blocks. See `settling.settle`."""
        wanted = None if self._config.device.budget is None else self.budget.nbytes
        try:
            self._observe(settling.settle(lambda: self._usage(self._facts.uuids), wanted, pause=pause, say=say))
        finally:
            self.settled = True

    def most(self) -> Budget:
        """What the budget may become: before this machine is settled, others may give back all that they hold."""
        if self.settled:
            return self.budget
        config = self._config.device
        return resolve(config.budget, config.reserve, replace(self._facts, free_bytes=self._facts.total_bytes))

    def look(self) -> Budget:
        """The budget and what is free for it now, as long as this process has taken nothing itself."""
        if self._config.backend == "cuda" and not self._touched:
            self._observe(self._usage(self._facts.uuids))
        return self.budget

    def _observe(self, usage: nvml.Usage | None) -> None:
        if usage is None:
            return
        config = self._config.device
        self._facts = self._facts.at(usage)
        budget = resolve(config.budget, config.reserve, self._facts)
        self.budget = replace(budget, held=settling.held_by(usage.holders))

    def overhead(self, host_bytes: int) -> int:
        """Device memory that the arena's allocation and page-locked host memory take besides, in bytes."""
        if self._config.backend == "cpu":
            return 0
        return self._beside(self._config.device.allocator) + host_bytes // _LOCKED_SHARE

    def process_bytes(self, *, now_exactly: bool = False) -> int | None:
        """Device memory of this process as the driver counts it, a few seconds old unless `now_exactly`; None where that
        cannot be told.
        """
        now = self._clock()
        if now_exactly or self._used_at is None or now - self._used_at > _DRIVER_SECONDS:
            self._used, self._used_at = driver_used(self._facts, usage=self._usage), now
        return self._used

    def can_reserve(self, plan: Plan) -> bool:
        """Whether this process can take what a plan says: after one whose reservation has failed, only with a pool of the
        same size.
        """
        return self._pool_bytes in (None, pool_bytes(plan, self._config.device.allocator))

    def reserve(
        self,
        plan: Plan,
        host_bytes: int | None,
        *,
        models: Sequence[ServableModel],
        catalog: Catalog,
        journal: Journal,
        changed: Callable[[], None],
        load_refused: Callable[[str, Refusal], None] = lambda _name, _refusal: None,
    ) -> Parts:
        """Take what the plan says; see `parts.reserve` for what is raised. Blocks for as long as the driver takes, and for a
        run of every program of the models.
        """
        config = self._config
        self._touched = True
        if config.backend == "cuda" and self._facts.total_bytes:
            # Read when JAX's client is made, which is when the backend's device is asked for first.
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
            self._pool_bytes = pool_bytes(plan, config.device.allocator)
            os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{self._pool_bytes / self._facts.total_bytes:.9f}"
        return reserve(
            config,
            plan,
            models=models,
            open_store=lambda: self._open_store(host_bytes),
            catalog=catalog,
            journal=journal,
            changed=changed,
            load_refused=load_refused,
        )

    def host_plan(self, weights: int, device: Plan | None, *, workers: int) -> HostPlan:
        """What host memory is for, as it is now.

        Args:
            weights: bytes of all models that are assigned now; a worker without an operator keeps no more.
            device: the device memory plan; None before it is made.
            workers: that divide a budget which they do not share, as the operator says; 0: as the configuration says.

        Raises:
            SettingError: the directory of the pool is out of reach.
        """
        config = self._config
        return make_host_plan(
            HostInputs(
                config=config.host,
                facts=self._host_facts(),
                backend=config.backend,
                managed=config.managed,
                workers=workers or config.host.workers,
                useful=self._useful(weights),
                ring=RING_BYTES + ring_bytes(config.backend, config.device.allocator),
                device=device,
            )
        )

    def locked_bytes(self, weights: int, *, workers: int) -> int:
        """Bytes of the host pool that may come to be page-locked, which `overhead` counts; 0 while the configured budget
        cannot be had. Arguments as of `host_plan`.
        """
        plan = self.host_plan(weights, None, workers=workers)
        if plan.budget is None:
            return hostbudget.most(self._config.host, self._host_facts(), useful=self._useful(weights))
        return plan.budget if plan.fits else 0

    def failure(self, error: BaseException) -> Failure:
        """Why the plan could not be carried out, in words of the closed list."""
        match error:
            case DeviceError():
                return Failure(Reason.INSUFFICIENT_DEVICE_MEMORY, str(error))
            case HostPoolError():
                return Failure(Reason.INSUFFICIENT_HOST_MEMORY, str(error))
            case OSError():
                return Failure(Reason.INVALID_SPEC, str(error))
        return Failure(Reason.LOAD_FAILED_WILL_RETRY, f"{type(error).__name__}: {error}")

    def _host_facts(self) -> HostFacts:
        pool = self._pool()
        try:
            return self._host(pool)
        except (OSError, ValueError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            raise SettingError(
                f"host.directory: {pool} cannot be used: {why}; name a folder that user {os.getuid()} may enter"
            ) from error

    def _useful(self, weights: int) -> int | None:
        return None if self._config.managed else weights

    def _pool(self) -> Path:
        return pool_directory(self._config)

    def _open_store(self, host_bytes: int | None) -> HostPool:
        host = self._config.host
        return HostPool(
            directory=self._pool(),
            budget=host_bytes,
            segment_bytes=host.segment_bytes,
            mode=int(host.file_mode, 8),
            locker=self._locker(),
        )

    def _locker(self) -> PageLocker | None:
        if self._config.backend == "cpu":
            return None
        from ballast_worker.control.pagelock import cuda_locker  # noqa: PLC0415

        return cuda_locker(self._config.device.ordinal)


def pool_directory(config: WorkerConfig) -> Path:
    """Where the host pool is: shared by the node's workers as it is configured, else one below for this worker."""
    host = config.host
    return host.directory if host.sharing == "node" else host.directory / config.name
