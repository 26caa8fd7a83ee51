# SPDX-License-Identifier: Apache-2.0
"""What bounds a server in Python: the call alone, and the least server around it, in a process of its own.

The server reads the model's name from the path and the raw tensor from the body's end, calls, and answers with a fixed
head and the raw output: no validation, no queue, no metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final, cast

import httptools
import jax
import numpy as np
import uvloop

from benchmarks.requests.models import NAMES, WIDTH, Row, function, parameters, questions
from benchmarks.requests.server import FLOOR_READY

_INPUT_BYTES: Final = 4 * WIDTH

Call = Callable[[Row], Row]


def calls() -> dict[str, Call]:
    """Each model by its name: numpy in, numpy out, shape [1, 384], compiled."""
    cast("Any", jax.config).update("jax_cpu_enable_async_dispatch", False)  # as a worker does; untyped in some releases
    compiled: Any = jax.jit(function)

    def call(name: str) -> Call:
        weights = jax.device_put(parameters(name))
        return lambda x: np.asarray(compiled(weights, x))

    return {name: call(name) for name in NAMES}


def alone(models: dict[str, Call], seconds: float) -> list[float]:
    """Seconds of each call, one after the other for so long, over all models in turn."""
    asked = [(models[name], vector[np.newaxis]) for name, vector, _ in questions()]
    for call, x in asked:
        call(x)
    took: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        call, x = asked[len(took) % len(asked)]
        call(x)
        took.append(time.perf_counter() - began)
    return took


class _Connection(asyncio.Protocol):
    """One connection; a request's body is complete before the answer leaves."""

    def __init__(self, models: dict[str, Call]) -> None:
        self._models = models
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """See httptools."""
        self._url = url

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """See httptools: /v2/models/NAME/infer, with a body that ends in the raw tensor."""
        body = b"".join(self._body)
        self._body.clear()
        name = self._url.split(b"/")[3].decode()
        x = np.frombuffer(body[-_INPUT_BYTES:], np.float32)
        output = self._models[name](x.reshape(1, WIDTH))
        self._transport.write(_HEADS[name] + output.tobytes())


def _head(name: str) -> bytes:
    tensor = {"name": "y", "datatype": "FP32", "shape": [1, WIDTH], "parameters": {"binary_data_size": _INPUT_BYTES}}
    described = json.dumps({"model_name": name, "model_version": "1", "outputs": [tensor]}).encode()
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%b"
        % (len(described), len(described) + _INPUT_BYTES, described)
    )


_HEADS: Final = {name: _head(name) for name in NAMES}


async def _serve(models: dict[str, Call], figures: dict[str, float]) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(models), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"event": FLOOR_READY, "http_port": port, **figures}), file=sys.stderr, flush=True)
    await server.serve_forever()


def main() -> None:
    """Measure the call alone, say so, and serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="of calls alone, so often: 3")
    options = parser.parse_args()
    models = calls()
    rounds = [alone(models, options.seconds) for _ in range(3)]
    figures = {
        "call_microseconds_p50": median(1e6 * median(took) for took in rounds),
        "calls_per_second": median(len(took) / sum(took) for took in rounds),
    }
    uvloop.run(_serve(models, figures))


if __name__ == "__main__":
    main()
