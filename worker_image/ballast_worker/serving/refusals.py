# SPDX-License-Identifier: Apache-2.0
"""What the device thread answers when it does not execute: one function per reason, so that the words are the same."""

from __future__ import annotations

from ballast_contract.reasons import Reason
from ballast_worker.residency.demand import Refusal


def queue_full(model: str, limit: int) -> Refusal:
    """One call too many."""
    return Refusal(
        Reason.QUEUE_FULL,
        f"model '{model}' has {limit} requests waiting, which is serving.maxQueue: send fewer at once, or add replicas",
        retry_after_seconds=1.0,
    )


def deadline_exceeded(model: str, waited: float) -> Refusal:
    """The caller's deadline passed while the call waited."""
    return Refusal(
        Reason.DEADLINE_EXCEEDED,
        f"the deadline of a request for model '{model}' passed after it had waited {waited:.3f} s",
    )


def loading(model: str, seconds: float, remaining: float) -> Refusal:
    """The weights will not be there in time."""
    return Refusal(
        Reason.LOADING,
        f"the weights of model '{model}' are on their way and take about {seconds:.1f} s more; the request's deadline is "
        f"in {max(remaining, 0.0):.1f} s: try again then, or allow more time",
        retry_after_seconds=seconds,
    )


def draining() -> Refusal:
    """The worker is ending."""
    return Refusal(
        Reason.DRAINING, "this worker is ending and takes no new requests: try again", retry_after_seconds=1.0
    )


def not_served(model: str) -> Refusal:
    """The model has left this worker."""
    return Refusal(Reason.NOT_REQUESTED, f"model '{model}' is not served by this worker any more")


def superseded(model: str) -> Refusal:
    """A later change of the same model came first."""
    return Refusal(Reason.NOT_REQUESTED, f"model '{model}' was changed again or removed before this change was made")


def replaced(model: str) -> Refusal:
    """The call does not fit the version that serves by now."""
    return Refusal(
        Reason.SOURCE_CHANGED,
        f"model '{model}' was replaced by a version with other inputs or programs while the request waited: look at its "
        "metadata and send the request again",
        retry_after_seconds=0.0,
    )


def execution_failed(model: str, program: str, error: Exception) -> Refusal:
    """The runtime ended an execution with an error."""
    return Refusal(Reason.EXECUTION_FAILED, f"executing model '{model}' ({program}) failed: {error}")
