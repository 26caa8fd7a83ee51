# SPDX-License-Identifier: Apache-2.0
"""The plan that a start would use, made without starting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ballast_contract.config import WorkerConfig
from ballast_contract.reasons import Reason
from ballast_worker.build.errors import StoreError
from ballast_worker.build.local import LocalBuilder
from ballast_worker.build.store import ExecutableStore
from ballast_worker.bundle.errors import BundleError
from ballast_worker.control import planning
from ballast_worker.control.assignment import AssignedModel, Assignment, AssignmentError, AssignmentFile
from ballast_worker.control.hostplan import HostPlan
from ballast_worker.control.machine import Machine
from ballast_worker.control.models import Built, Failure
from ballast_worker.control.planning import Basis, DeviceLimits
from ballast_worker.control.preparation import Workshop, inspect
from ballast_worker.control.quarantine import Quarantine
from ballast_worker.control.settings import SettingError
from ballast_worker.control.standalone import Folder
from ballast_worker.device.plan import Plan


class PreviewError(Exception):
    """No plan can be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a start would plan.

    Attributes:
        plan: of device memory.
        host: of host memory.
        refused: models that it leaves out because they would be refused alone.
    """

    plan: Plan
    host: HostPlan
    refused: dict[str, Failure]

    @property
    def fits(self) -> bool:
        """A start would serve."""
        return self.plan.fits and self.host.fits


def plan(config: WorkerConfig, machine: Machine, *, say: Callable[[str], None]) -> Preview:
    """Inspect and build what would be served, and plan for it. Nothing but the executable store is written.

    Args:
        config: of the worker.
        machine: the device as it is now.
        say: told how far it is.

    Raises:
        PreviewError: the device, the folder or the configuration allows no plan, or the executable store cannot be made.
    """
    if machine.fault is not None:
        raise PreviewError(machine.fault.message)
    basis = Basis(config, machine.budget, machine.context, machine.overhead(0))
    limits = DeviceLimits(basis)
    workshop = Workshop(config, LocalBuilder(_store(config), parallelism=config.build.parallelism))
    built: dict[str, Built] = {}
    refused: dict[str, Failure] = {}
    assignment = _assignment(config)
    specs = {spec.name: spec for spec in assignment.models}
    quarantine = Quarantine(config.state_directory.expanduser())
    for name, spec in specs.items():
        why = quarantine.verdict(spec)
        found = _prepare(config, spec, workshop, limits, say) if why is None else Failure(Reason.QUARANTINED, why)
        if isinstance(found, Failure):
            refused[name] = found
        else:
            built[name] = found
    weights = sum(one.bundle.layout.nbytes for one in built.values())
    workers = assignment.node_workers
    wishes = {name: spec.residency for name, spec in specs.items()}
    try:
        basis = replace(basis, overhead=machine.overhead(machine.locked_bytes(weights, workers=workers)))
        made = basis.plan(basis.inputs(planning.wanted(built, wishes)))
        return Preview(made, machine.host_plan(weights, made, workers=workers), refused)
    except SettingError as error:
        raise PreviewError(str(error)) from error


def _store(config: WorkerConfig) -> ExecutableStore:
    try:
        return ExecutableStore(config.executable_store)
    except StoreError as error:
        raise PreviewError(str(error)) from error


def _assignment(config: WorkerConfig) -> Assignment:
    if config.managed:
        return AssignmentFile(config.state_directory.expanduser()).load()
    try:
        return Assignment(models=Folder(config).scan())
    except AssignmentError as error:
        raise PreviewError(str(error)) from error


def _prepare(
    config: WorkerConfig, spec: AssignedModel, workshop: Workshop, limits: DeviceLimits, say: Callable[[str], None]
) -> Built | Failure:
    try:
        bundle = inspect(spec.uri, spec.digest, config.stores)
    except BundleError as error:
        return Failure.of(error)
    failure = limits.check_bytes(bundle)
    if failure is not None:
        return failure
    found = workshop.build(
        bundle, memory_bytes=limits.build_memory(), progress=lambda text: say(f"{spec.name}: {text}")
    )
    return found if isinstance(found, Failure) else limits.check_built(spec.name, found, ()) or found
