# SPDX-License-Identifier: Apache-2.0
"""Requests for models of other workers: passed on, their answers passed back, and what became of each counted."""

from __future__ import annotations

from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.catalog import Elsewhere, Here
from ballast_worker.serving.forward_http import HttpForwarder, LostError
from ballast_worker.serving.forwarded import Forwarded, Result
from ballast_worker.serving.http_exchange import Exchange
from ballast_worker.serving.http_replies import fail, refuse
from ballast_worker.serving.http_stream import WINDOW
from ballast_worker.serving.http_upstream_answer import UpstreamAnswer
from ballast_worker.serving.routes import Operation, Route
from ballast_worker.serving.service import Service, forward_lost, forward_timeout


class HttpPassing:
    """Finds who answers. Belongs to the event loop."""

    def __init__(self, service: Service, forwarded: Forwarded, *, timeout_seconds: float) -> None:
        self._service = service
        self._forwarded = forwarded
        self._timeout_seconds = timeout_seconds
        self._forwarder = HttpForwarder(timeout_seconds=timeout_seconds)

    def close(self) -> None:
        """Close idle connections to other workers."""
        self._forwarder.close()

    async def answer(self, exchange: Exchange, route: Route, *, left: bool) -> Here | None:
        """Answer with what another worker says, or why none does. Here, and no answer yet, when the model has come here.

        Args:
            exchange: to be answered; of its body at most `WINDOW` bytes are read before they go on.
            route: of its model.
            left: as in `Service.seek`.
        """
        await exchange.gather(WINDOW)
        stream = exchange.stream
        result: Result | None = None
        answer: UpstreamAnswer | None = None

        async def ask(found: Elsewhere) -> UpstreamAnswer | None:
            nonlocal result, answer
            result = Result.LEFT  # unless something else comes of it
            answer = await self._forwarder.forward(found.endpoints, exchange.request, stream)
            if answer is None:
                result = None  # nobody has got it
            return answer

        try:
            outcome = await self._service.seek(
                route.model, route.version, ask, wait=route.operation is Operation.INFER, left=left
            )
            match outcome:
                case Here():
                    return outcome
                case Refusal():
                    refuse(exchange, outcome)
                case UpstreamAnswer():
                    await _pass_back(exchange, outcome)
                    result = Result.ANSWERED
        except LostError:
            result = Result.LOST
            if exchange.take_back():
                refuse(exchange, forward_lost(route.model))
        except TimeoutError:
            if stream is not None and stream.awaited:
                fail(exchange, 408, "the request did not arrive in time")
            else:
                result = Result.LATE
                if exchange.take_back():
                    refuse(exchange, forward_timeout(route.model, self._timeout_seconds))
        finally:
            if result is not None:
                self._forwarded.count(
                    "http",
                    result,
                    request=len(exchange.request.body) if stream is None else stream.nbytes,
                    answer=0 if answer is None else answer.body.nbytes,
                )
        return None


async def _pass_back(exchange: Exchange, answer: UpstreamAnswer) -> None:
    """Answer with what is on its way from another worker, until all of it has come.

    Raises:
        LostError: that worker ended first.
        TimeoutError: it went silent.
    """
    try:
        exchange.relay(answer.status, answer.body, content_type=answer.content_type, headers=answer.passed_headers)
        if exchange.request.method != b"HEAD":
            await answer.body.settled()
    except ConnectionResetError as error:
        raise LostError from error
    finally:
        answer.close()
