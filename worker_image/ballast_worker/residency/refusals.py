# SPDX-License-Identifier: Apache-2.0
"""Why a load has ended without weights on the device, in words for people, and when another try makes sense. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ballast_contract.quantities import human
from ballast_contract.reasons import Reason
from ballast_worker.bundle.errors import BundleError
from ballast_worker.residency.demand import Refusal

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0

MOST_NAMES = 8
"""Victims that a message names; the rest is counted."""


def retry_pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row: 1, 2, 4, ... 60."""
    return float(min(FIRST_RETRY_SECONDS * 2.0 ** (failures - 1), LONGEST_RETRY_SECONDS))


def of_error(model: str, error: Exception) -> Refusal:
    """What a bundle, a disk or the device had to say."""
    if isinstance(error, BundleError):
        reason = Reason(error.reason)
        return Refusal(reason, str(error), None if reason is Reason.BUNDLE_INVALID else FIRST_RETRY_SECONDS)
    return Refusal(
        Reason.LOAD_FAILED_WILL_RETRY,
        f"loading '{model}' failed: {type(error).__name__}: {error}",
        FIRST_RETRY_SECONDS,
    )


def no_free_memory(model: str, nbytes: int, free: int) -> Refusal:
    """A load for which nobody else may go."""
    return Refusal(
        Reason.INSUFFICIENT_DEVICE_MEMORY,
        f"'{model}' ({human(nbytes)}) does not fit into the {human(free)} that are free beside what was loaded before it",
    )


def no_host_copy(model: str, nbytes: int) -> Refusal:
    """A copy that the user wants kept, and that cannot be."""
    return Refusal(
        Reason.INSUFFICIENT_HOST_MEMORY,
        f"no host memory is free for a copy of '{model}' ({human(nbytes)}): raise host.budget and the memory limit, or the "
        "size of the shared memory mount",
    )


def not_served(model: str) -> Refusal:
    """A model that is not registered, or no longer."""
    return Refusal(Reason.NOT_REQUESTED, f"'{model}' is not served by this worker")


def with_victims(refusal: Refusal, evicted: Sequence[str]) -> Refusal:
    """Say who had gone for the load."""
    if not evicted:
        return refusal
    more = f" and {len(evicted) - MOST_NAMES} more" if len(evicted) > MOST_NAMES else ""
    names = ", ".join(evicted[:MOST_NAMES])
    return replace(refusal, message=f"{refusal.message}; {len(evicted)} had gone for it: {names}{more}")
