# SPDX-License-Identifier: Apache-2.0
"""A whole worker in a thread of the test's process, driven through its control service and its protocols."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc

from ballast_contract.config import WorkerConfig
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc
from ballast_worker.bundle.reader import Bundle
from ballast_worker.control.process import WorkerProcess

CALLABLE = (pb.MODEL_PHASE_PREPARED, pb.MODEL_PHASE_LOADING, pb.MODEL_PHASE_LOADED)
"""Phases in which a call is answered, after a load if need be."""


def until(reached: Callable[[], bool], what: Callable[[], str]) -> None:
    """Look again and again, where nothing tells of the change; a test that waits in vain says what is there instead."""
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


class Running:
    """A worker that runs in a thread of this process, and the ways to it."""

    def __init__(self, config: WorkerConfig, **given: Any) -> None:
        self.process = WorkerProcess(config, **given)
        self.worker = self.process.worker
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self.process.control_port}")
        self.control = control_pb2_grpc.ControlStub(self._channel)

    def _run(self) -> None:
        self.exit_code = self.process.run()

    def assign(self, *models, epoch=1, generation=1, **fields) -> pb.ApplyAssignmentResponse:
        return self.control.ApplyAssignment(
            pb.ApplyAssignmentRequest(epoch=epoch, generation=generation, models=models, **fields), timeout=240
        )

    def states(self) -> Iterator[pb.WorkerState]:
        """The worker's state after each message of its stream."""
        state = pb.WorkerState()
        stream = self.control.Watch(pb.WatchRequest(), timeout=240)
        try:
            yield from self._apply(state, stream)
        finally:
            stream.cancel()

    @staticmethod
    def _apply(state: pb.WorkerState, stream: Iterator[pb.WatchResponse]) -> Iterator[pb.WorkerState]:
        for message in stream:
            match message.WhichOneof("event"):
                case "full":
                    state.CopyFrom(message.full)
                case "change":
                    change = message.change
                    models = {m.name: m for m in state.models} | {m.name: m for m in change.models}
                    for name in change.removed:
                        models.pop(name, None)
                    kept = list(models.values())
                    state.ClearField("models")
                    state.models.extend(kept)
                    for field in ("device", "host", "condition"):
                        if change.HasField(field):
                            getattr(state, field).CopyFrom(getattr(change, field))
                    if change.HasField("assignment_generation"):
                        state.assignment_generation = change.assignment_generation
            yield state

    def until(self, reached: Callable[[pb.WorkerState], bool]) -> pb.WorkerState:
        """Follow the stream until the state is as wished."""
        for state in self.states():
            if reached(state):
                return state
        raise AssertionError("the stream ended first")

    def state(self) -> pb.WorkerState:
        """The state now."""
        return next(self.states())

    def until_model(self, name: str, *phases: int) -> pb.ModelState:
        """Follow the stream until a model has reached one of these phases."""
        found = self.until(lambda state: any(m.name == name and m.phase in phases for m in state.models))
        return next(m for m in found.models if m.name == name)

    def infer(self, model: str, values=(1.0, 2.0, 3.0, 4.0)) -> list[float]:
        """Call a model over gRPC."""
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{self.worker.parts.frontend.ports.grpc}") as client:
            tensor = tritonclient.grpc.InferInput("x", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.array([values], np.float32))
            return client.infer(model, [tensor]).as_numpy("y")[0].tolist()

    def page(self, path: str) -> tuple[int, str]:
        """A page of the metrics port, or of the introspection port."""
        inner = path.split("?", maxsplit=1)[0] in {"/plan", "/map", "/models", "/state", "/explain", "/regions"}
        port = self.process.introspection_port if inner else self.process.metrics_port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, line: str) -> float:
        """The value of one series, as `name{labels}`."""
        _, text = self.page("/metrics")
        return next(float(row.rpartition(" ")[2]) for row in text.splitlines() if row.rpartition(" ")[0] == line)

    def until_metric(self, line: str, least: float) -> None:
        """Wait until a series has at least this value: the other side may hear of something before it is counted."""
        until(lambda: self.metric(line) >= least, lambda: f"{line} is {self.metric(line)}")

    def until_log(self, caplog: Any, event: str) -> None:
        """Wait until an event is in the captured log: an answer may come before its line."""
        deadline = time.monotonic() + 20
        while not any(getattr(record, "event", "") == event for record in caplog.records):
            assert time.monotonic() < deadline, f"no {event} in the log"
            time.sleep(0.01)

    def stop(self) -> None:
        """End it, whatever it is doing."""
        self._channel.close()
        self.worker.terminate()
        self.worker._inbox.put(self.worker._release)
        self._thread.join(60)
        assert not self._thread.is_alive()


def assigned(bundle: Bundle, name: str = "", **fields) -> pb.AssignedModel:
    """A bundle as the operator assigns it."""
    return pb.AssignedModel(
        **{
            "name": name or bundle.manifest.name,
            "object": f"ns/{name or bundle.manifest.name}",
            "uri": f"file://{bundle.path}",
            "residency": pb.RESIDENCY_UNPINNED,
            **fields,
        }
    )
