# SPDX-License-Identifier: Apache-2.0
"""Watches that are cut, and that cannot go on where they were."""

from __future__ import annotations

import asyncio
import logging

import pytest
from helpers.api_server import Kubectl
from helpers.cluster_faults import Machine
from helpers.operator_rig import MODELS, Rig
from helpers.stalling_proxy import StallingProxy

from e2e.cluster.apiserver import another

pytestmark = pytest.mark.apiserver


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # connections that nobody could end
async def test_watches_that_were_cut_and_have_expired_begin_anew_in_the_same_process(
    bare: Rig, server: Kubectl, caplog: pytest.LogCaptureFixture
):
    """What vanished meanwhile is gone, and what came is served: etcd has forgotten the revisions between.

    nolar/kopf#787, nolar/kopf#957.
    """
    caplog.set_level(logging.DEBUG, "kopf")
    async with StallingProxy(bare.kubeconfig) as proxy:
        operator = bare.start_operator(kubeconfig=proxy.kubeconfig)
        await bare.budget()
        for name in ("kept", "gone"):
            await bare.model(name)
            await bare.until_condition(MODELS, name, "Ready", "True")
        Machine(server.server.settings).compact()
        with another(server.server) as second:
            proxy.turn(second.api_port)
            await bare.delete(MODELS, "gone")
            await bare.model("new")
            await bare.until_condition(MODELS, "new", "Ready", "True")
            [worker] = bare.workers.values()

            async def left() -> bool:
                return worker.models.keys() == {"kept", "new"}

            await bare.until(left, seconds=60)

            async def told_that_it_comes_too_late() -> bool:
                return "Restarting the watch-stream for inferencemodels" in caplog.text

            await bare.until(told_that_it_comes_too_late, seconds=60)
            assert (operator.lost, operator.error, operator.health.faults()) == ([], None, [])
            await asyncio.to_thread(operator.stop)
