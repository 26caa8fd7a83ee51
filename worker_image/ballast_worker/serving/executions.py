# SPDX-License-Identifier: Apache-2.0
"""Executions under way on the device, from the lease of the weights to the answers of the calls. Device thread only.

A lease is given back after the host saw every output of its execution, or after the runtime said that it failed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import jax

from ballast_worker.bundle.dimensions import program_name
from ballast_worker.device.memory import Lease
from ballast_worker.residency.protocol import Residency
from ballast_worker.serving import refusals
from ballast_worker.serving.accounts import Accounts
from ballast_worker.serving.assembly import assemble, cut
from ballast_worker.serving.call import Call, Outcome
from ballast_worker.serving.executable import device_works, to_host
from ballast_worker.serving.journal import Journal
from ballast_worker.serving.queues import Batch
from ballast_worker.serving.served import Version

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Execution:
    """An execution under way."""

    model: str
    version: Version
    batch: Batch
    lease: Lease
    residency: Residency
    started: float
    outputs: list[jax.Array] = field(default_factory=list)


class Executions:
    """Starts executions and sees them to their end, in order."""

    def __init__(
        self,
        *,
        device: jax.Device,
        journal: Journal,
        fatal: Callable[[str], None],
        accounts: Accounts,
        clock: Callable[[], float],
    ) -> None:
        self._device = device
        self._journal = journal
        self._fatal = fatal
        self._accounts = accounts
        self._clock = clock
        self._running: deque[_Execution] = deque()
        self._executing: Counter[str] = Counter()
        self._last_end = 0.0

    def __len__(self) -> int:
        return len(self._running)

    def executing(self, model: str) -> bool:
        """Whether an execution of this model has not been seen to end."""
        return self._executing[model] > 0

    def start(self, model: str, version: Version, batch: Batch, residency: Residency) -> None:
        """Enqueue a batch; only in the turn in which residency said that the model is ready."""
        lease = residency.lease(model)
        self._executing[model] += 1
        execution = _Execution(model, version, batch, lease, residency, self._clock())
        self._journal.begin(model, batch.program.dimensions)
        try:
            self._enqueue(execution)
        except Exception as error:  # noqa: BLE001 - whatever the runtime raises: these calls fail, the worker serves on
            self._fail(execution, error)
        else:
            self._running.append(execution)

    def finish(self) -> tuple[str, float]:
        """Wait for the end of the oldest execution and answer its calls.

        Returns:
            Its model, and by how many seconds it took longer than was expected.
        """
        execution = self._running.popleft()
        batch = execution.batch
        calls = [waiting.call for waiting in batch.members]
        try:
            if execution.outputs:
                execution.outputs[0].block_until_ready()
            ended = self._clock()
            outputs = to_host(execution.outputs)
            answers = cut(outputs, execution.version.output_axes, calls, batched=execution.version.batched)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(execution, error)
            return execution.model, 0.0
        # With several enqueued, one begins when the one before it has ended.
        seconds = ended - max(execution.started, self._last_end)
        self._last_end = ended
        surprise = seconds - batch.program.seconds
        batch.members[0].bucket.learn(batch.program, seconds)
        waits = [execution.started - waiting.arrived for waiting in batch.members]
        self._accounts.dispatched(execution.model, rows=batch.rows, seconds=seconds, waits=waits)
        self._end(execution)
        for call, own in zip(calls, answers, strict=True):
            answer(call, own)
        return execution.model, surprise

    def _enqueue(self, execution: _Execution) -> None:
        version, batch = execution.version, execution.batch
        program = version.programs[batch.program.dimensions]
        inputs = assemble([waiting.call for waiting in batch.members], program.shapes, batched=version.batched)
        uploaded = program.upload(inputs)
        execution.started = self._clock()
        execution.outputs = program.enqueue(execution.lease.arrays, uploaded)

    def _fail(self, execution: _Execution, error: Exception) -> None:
        program = program_name(dict(execution.batch.program.dimensions))
        _log.error("executing model %s (%s) failed", execution.model, program, exc_info=error)
        if not device_works(self._device):
            # The journal still names the model, so that the next process knows.
            self._fatal(f"the device takes no more work after model '{execution.model}' ({program}): {error}")
        self._end(execution)
        for waiting in execution.batch.members:
            answer(waiting.call, refusals.execution_failed(execution.model, program, error))

    def _end(self, execution: _Execution) -> None:
        self._journal.end(execution.model, execution.batch.program.dimensions)
        execution.outputs.clear()
        execution.lease.release()
        self._executing[execution.model] -= 1
        if not self._executing[execution.model]:
            del self._executing[execution.model]
        execution.residency.dispatched(execution.model)


def answer(call: Call, outcome: Outcome) -> None:
    """Give a call its outcome; whatever its `done` raises stays with it."""
    try:
        call.done(outcome)
    except Exception:  # noqa: BLE001 - a caller's fault must not end the device thread
        _log.exception("the answer of a request for model %s could not be given", call.model)
