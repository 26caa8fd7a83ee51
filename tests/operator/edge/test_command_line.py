# SPDX-License-Identifier: Apache-2.0
"""Options, health, logs, and the process as a user starts it."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from helpers.operator_rig import BUDGETS, LEASES, Rig
from helpers.stalling_proxy import StallingProxy
from prometheus_client import CollectorRegistry, Gauge

from ballast_operator.edge.arguments import parse
from ballast_operator.edge.health import LOOP_SECONDS, RUN_SECONDS, Health, HealthServer
from ballast_operator.edge.logs import JsonFormatter

RUN = ["run", "--worker-image", "img", "--operator-image", "own"]
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAMESPACE": "ballast", "POD_NAME": "ballast-0", "POD_UID": "u-1"}


def test_in_a_pod_everything_has_a_default():
    found = parse(RUN, POD)
    assert found.namespaces == ()
    assert found.kubeconfig is None
    assert (found.lease_namespace, found.lease_name) == ("ballast", "ballast-operator")
    assert re.fullmatch("ballast-0_u-1_[0-9a-f]{8}", found.identity)


def test_every_process_has_an_identity_of_its_own():
    assert parse(RUN, POD).identity != parse(RUN, POD).identity


def test_namespaces_come_as_a_list_repeated_or_from_the_environment():
    assert parse([*RUN, "--namespace", "b,a", "--namespace", "c"], POD).namespaces == ("a", "b", "c")
    assert parse(RUN, {**POD, "BALLAST_OPERATOR_NAMESPACE": "x, y"}).namespaces == ("x", "y")


def test_the_command_line_wins_over_the_environment():
    images = {"BALLAST_OPERATOR_WORKER_IMAGE": "env", "BALLAST_OPERATOR_OPERATOR_IMAGE": "env"}
    environment = {**POD, **images, "BALLAST_OPERATOR_PORT": "9000"}
    assert parse(["run"], environment).worker_image == "env"
    assert parse(RUN, environment).worker_image == "img"
    assert parse(RUN, environment).port == 9000


def test_outside_a_pod_the_kubeconfig_is_found():
    home = {"HOME": "/home/me"}
    assert parse([*RUN, "--lease-namespace", "x"], home).kubeconfig == Path("/home/me/.kube/config")
    assert parse([*RUN, "--lease-namespace", "x"], {**home, "KUBECONFIG": "/k"}).kubeconfig == Path("/k")


@pytest.mark.parametrize(
    ("argv", "environment", "message"),
    [
        (RUN, {"HOME": "/"}, "--lease-namespace is needed outside a pod"),
        (["run"], POD, "--worker-image is needed"),
        (["run", "--worker-image", "img"], POD, "--operator-image is needed"),
        (["runn"], POD, "invalid choice: 'runn'"),
        ([*RUN, "--log-level", "loud"], POD, "invalid choice: 'loud'"),
        ([*RUN, "--prot", "1"], POD, "unknown option '--prot'"),
        ([*RUN, "--prot", "1"], POD, "did you mean '--port'?"),
        ([*RUN, "--lease-nmae=x"], POD, "did you mean '--lease-name'?"),
        ([*RUN, "--writes-per-second", "0"], POD, "0 is no rate: give a finite number above 0, such as 1000"),
        ([*RUN, "--writes-per-second", "-5"], POD, "-5 is no rate"),
        ([*RUN, "--writes-per-second", "nan"], POD, "nan is no rate"),
        ([*RUN, "--writes-per-second", "inf"], POD, "inf is no rate"),
        ([*RUN, "--writes-per-second", "many"], POD, "many is no rate"),
        (RUN, {**POD, "BALLAST_OPERATOR_WRITES_PER_SECOND": "0"}, "argument --writes-per-second: 0 is no rate"),
        ([*RUN, "--port", "99999"], POD, "99999 is no port: give a whole number from 0 to 65535; 0 takes a free one"),
        ([*RUN, "--port", "-1"], POD, "-1 is no port"),
        ([*RUN, "--port", "http"], POD, "http is no port"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(argv, environment, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(argv, environment)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"], POD)
    text = capsys.readouterr().out
    assert "ballast-operator run --namespace team-a --namespace team-b" in text
    assert "strip-finalizers" in text


def get(url: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_is_the_progress_of_loop_and_queue():
    clock = [0.0]
    health = Health(clock=lambda: clock[0])
    registry = CollectorRegistry()
    Gauge("answer", "What is it", registry=registry).set(42)
    server = HealthServer(health, registry, host="127.0.0.1", port=0)
    server.start()
    base = f"http://127.0.0.1:{server.port}"
    try:
        assert get(f"{base}/healthz") == (200, json.dumps({"ok": True, "stage": "starting", "faults": []}))
        assert get(f"{base}/readyz?x=1")[0] == 200
        assert "answer 42.0" in get(f"{base}/metrics")[1]
        assert get(f"{base}/")[0] == 404
        clock[0] = LOOP_SECONDS + 1
        status, text = get(f"{base}/healthz")
        assert status == 503
        assert "the event loop has not turned for 11 s (limit 10)" in text
        health.beat()
        health.longest_run = lambda: RUN_SECONDS + 1
        assert "a reconciliation has been running for 301 s" in get(f"{base}/healthz")[1]
    finally:
        server.stop()


def test_a_json_line_has_time_level_logger_message_and_exception():
    try:
        int("broken")
    except ValueError:
        record = logging.LogRecord("x.y", logging.WARNING, "f", 1, "hello %s", ("you",), sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["logger"], line["message"]) == ("warning", "x.y", "hello you")
    assert "ValueError: invalid literal" in line["exception"]
    assert line["time"].endswith("+00:00")


async def started(rig: Rig, *options: str) -> asyncio.subprocess.Process:
    """The command as a user gives it."""
    command = [sys.executable, "-m", "ballast_operator.edge.main", *RUN, "--kubeconfig", str(rig.kubeconfig)]
    command += ["--lease-namespace", rig.namespace, "--namespace", rig.namespace, "--host", "127.0.0.1", *options]
    return await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env={**os.environ})


@pytest.mark.apiserver
async def test_sigterm_ends_the_process_and_gives_the_lease_up(bare: Rig):
    process = await started(bare, "--port", "0")
    await bare.budget()
    await bare.until(bare.pods)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, text = await process.communicate()
    assert process.returncode == 0, text.decode()
    assert time.monotonic() - began < 10
    lease = await bare.client.get(LEASES, bare.namespace, "ballast-operator")
    assert lease["spec"]["holderIdentity"] == ""


@pytest.mark.apiserver
async def test_a_leader_that_is_killed_is_followed_within_the_lease_s_time(bare: Rig):
    """SIGKILL, then an edit."""
    process = await started(bare, "--port", "0")
    await bare.budget()
    await bare.until(bare.pods)
    bare.start_operator()
    process.kill()
    await process.communicate()
    began = time.monotonic()
    await bare.budget(replicas=2)

    async def grown() -> bool:
        return len(await bare.pods()) == 2

    await bare.until(grown, seconds=20)
    assert time.monotonic() - began < 16


@pytest.mark.apiserver
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # connections that nobody could end
async def test_an_api_server_that_falls_silent_costs_the_lease_and_its_return_is_noticed(bare: Rig):
    """Packets are dropped, nothing is reset."""
    async with StallingProxy(bare.kubeconfig) as proxy:
        first = bare.start_operator(kubeconfig=proxy.kubeconfig)
        await bare.budget()
        await bare.until_condition(BUDGETS, "default", "Ready", "True")
        proxy.stall()

        async def lost() -> bool:
            return first.lost == ["the Lease was lost"]

        await bare.until(lost, seconds=15)
        second = bare.start_operator(kubeconfig=proxy.kubeconfig)
        await bare.budget(replicas=2)
        proxy.flow()

        async def noticed() -> bool:
            return len(await bare.pods()) == 2

        await bare.until(noticed, seconds=30)
        assert not second.lost
        assert second.health.faults() == []
        await asyncio.to_thread(first.stop)
        await asyncio.to_thread(second.stop)
    gc.collect()
