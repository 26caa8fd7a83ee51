# SPDX-License-Identifier: Apache-2.0
"""What the worker itself says over HTTP: results, refusals, errors."""

from __future__ import annotations

from collections.abc import Sequence

from ballast_worker.residency.demand import Refusal
from ballast_worker.serving import http_codec
from ballast_worker.serving.call import Array
from ballast_worker.serving.http_exchange import Exchange
from ballast_worker.serving.metadata import VERSION
from ballast_worker.serving.signature import Request
from ballast_worker.serving.status import http_status, retry_after


def fail(exchange: Exchange, status: int, message: str, *, headers: Sequence[str] = ()) -> None:
    """Answer with an error."""
    exchange.respond_json(status, {"error": message}, headers=headers)


def refuse(exchange: Exchange, refusal: Refusal) -> None:
    """Answer with a refusal."""
    seconds = retry_after(refusal)
    fail(
        exchange, http_status(refusal), refusal.message, headers=[] if seconds is None else [f"Retry-After: {seconds}"]
    )


def answer(exchange: Exchange, model: str, request: Request, outputs: Sequence[Array]) -> None:
    """Answer with the outputs of a model."""
    pieces, header_length = http_codec.encode(model, VERSION, request, outputs)
    if header_length is None:
        exchange.respond(200, pieces)
    else:
        exchange.respond(
            200,
            pieces,
            content_type="application/octet-stream",
            headers=[f"Inference-Header-Content-Length: {header_length}"],
        )
