# SPDX-License-Identifier: Apache-2.0
"""Pages on the leader's loopback for whoever may forward a port of the operator's pod: why models are where they are."""

from __future__ import annotations

import json
import logging
from typing import Final

from aiohttp import web

from ballast_operator.reconcile.explaining import UnknownModel, explanation
from ballast_operator.reconcile.world import World

logger = logging.getLogger(__name__)

_USAGE: Final = "write /explain?namespace=NAMESPACE&model=MODEL"


class Introspection:
    """Serves /explain, read-only, on loopback alone. It lives in the loop that owns the world, and only while that leads."""

    def __init__(self, world: World, *, port: int) -> None:
        self._world = world
        self._port = port
        app = web.Application()
        app.router.add_get("/explain", self._explain)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> int:
        """Begin to answer; returns the port. Where it is taken nothing is served, and a warning says so."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        try:
            await site.start()
        except OSError as error:
            logger.warning("no introspection: 127.0.0.1:%d cannot be listened on: %s", self._port, error)
            return 0
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop answering."""
        await self._runner.cleanup()

    async def _explain(self, request: web.Request) -> web.Response:
        namespace, model = request.query.get("namespace", ""), request.query.get("model", "")
        if not namespace or not model:
            return web.Response(status=400, text=_USAGE + "\n")
        try:
            found = explanation(self._world, namespace, model)
        except UnknownModel as error:
            return web.Response(status=404, text=f"{error}\n")
        return web.json_response(found, dumps=lambda value: json.dumps(value, indent=2))
