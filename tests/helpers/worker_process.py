# SPDX-License-Identifier: Apache-2.0
"""`ballast-worker` as a real process, followed through its JSON logs."""

from __future__ import annotations

import http.client
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http
import yaml

from ballast_contract.config import WorkerConfig


class WorkerCommand:
    """One `ballast-worker --config FILE`."""

    def __init__(self, config: WorkerConfig, file: Path) -> None:
        self.file = file
        file.write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "ballast_worker.control.main", "--config", str(file)],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.seen: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.popen.stderr or ():
            try:
                self._lines.put(json.loads(line))
            except ValueError:
                self._lines.put({"event": "", "message": line})
        self._lines.put(None)

    def event(self, name: str, seconds: float = 240.0) -> dict[str, Any]:
        """The next log line of this event."""
        while (line := self._lines.get(timeout=seconds)) is not None:
            self.seen.append(line)
            if line.get("event") == name:
                return line
        raise AssertionError(f"the worker ended before {name}: {self.seen}")

    def wait_ready(self) -> None:
        """Until it serves; remembers its ports."""
        met = self.event("worker.met")
        ready = self.event("worker.ready")
        self.ports = {name: line[name] for line in (met, ready) for name in line if name.endswith("_port")}

    def rest(self) -> list[dict[str, Any]]:
        """Every log line, after its end."""
        while (line := self._lines.get()) is not None:
            self.seen.append(line)
        return self.seen

    def page(self, path: str, port: str = "introspection_port") -> tuple[int, str]:
        """A page of one of its ports."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, series: str) -> float:
        """The value of one series."""
        _, text = self.page("/metrics", "metrics_port")
        return next(float(row.rpartition(" ")[2]) for row in text.splitlines() if row.rpartition(" ")[0] == series)

    def infer(self, model: str, values=(1.0, 2.0, 3.0, 4.0), *, timeout: float = 60.0) -> list[float]:
        """Call a model over HTTP."""
        with tritonclient.http.InferenceServerClient(
            f"127.0.0.1:{self.ports['http_port']}", network_timeout=timeout
        ) as client:
            tensor = tritonclient.http.InferInput("x", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.array([values], np.float32))
            return client.infer(model, [tensor]).as_numpy("y")[0].tolist()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command with the same configuration and this worker's ports."""
        return subprocess.run(
            [sys.executable, "-m", "ballast_worker.control.main", "--config", str(self.file), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "", "BALLAST_SERVING_INTROSPECTION_PORT": str(self.ports["introspection_port"])},
        )

    def end(self) -> int:
        """Terminate and wait; the exit code."""
        self.popen.terminate()
        return self.wait()

    def kill(self) -> None:
        """SIGKILL."""
        self.popen.kill()
        self.wait()

    def wait(self) -> int:
        """Until it has ended and everything that it said was read."""
        code = self.popen.wait(240)
        self._reader.join()
        if self.popen.stderr is not None:
            self.popen.stderr.close()
        return code
