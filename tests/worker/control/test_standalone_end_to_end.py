# SPDX-License-Identifier: Apache-2.0
"""`ballast-worker` as people run it alone: a folder of bundles, a budget smaller than them, a death in a dispatch."""

from __future__ import annotations

import contextlib
import json
import mmap
import shutil
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.small_bundles import pack_small
from helpers.worker_process import WorkerCommand

from ballast_worker.bundle.writer import pack_bundle


@pytest.fixture
def run(tmp_path):
    running = []

    def start(config, name="worker.yaml"):
        worker = WorkerCommand(config, tmp_path / name)
        running.append(worker)
        return worker

    yield start
    for worker in running:
        if worker.popen.poll() is None:
            worker.kill()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


CALLABLE = {f"MODEL_PHASE_{phase}" for phase in ("PREPARED", "LOADING", "LOADED")}


def phase(worker, name):
    """Of one model, as the worker tells it; None before it knows the model."""
    return {model["name"]: model["phase"] for model in json.loads(worker.page("/models")[1])}.get(name)


def until(reached, seconds=240.0):
    """Ask again until the answer is true."""
    end = time.monotonic() + seconds
    while not (answer := reached()):
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)
    return answer


def test_a_folder_of_bundles_is_served_swapped_and_compacted(config_for, run, folder):
    for factor, name in enumerate("abcd", start=1):
        pack_small(folder / name, mebibytes=4, factor=factor, max_batch=1)
    worker = run(config_for(model_directory=str(folder), device={"budget": "16m"}, compaction_interval=2))
    worker.wait_ready()
    plan = next(line for line in worker.seen if line["event"] == "device.plan")
    assert sum(plan["lines"].values()) == plan["budget"] == 16 << 20
    for _ in range(2):
        for factor, name in enumerate("abcd", start=1):
            assert worker.infer(name) == [factor * x for x in (1.0, 2.0, 3.0, 4.0)]
    assert worker.metric("worker_weight_evicts_total") >= 1
    assert worker.metric("worker_weight_admission_failures_total") == 0
    until(lambda: worker.metric("worker_compactions_total") >= 1)
    assert worker.page("/readyz", "metrics_port") == (200, "ok\n")

    plan = worker.command("plan")
    assert plan.returncode == 0
    assert "on-demand weights" in plan.stdout
    assert json.loads(worker.command("plan", "--json").stdout)["fits"]
    explained = worker.command("explain", "--model", "d", "--limit", "3")
    assert explained.returncode == 0
    assert explained.stdout.count("load") >= 1
    regions = worker.command("regions")
    assert regions.returncode == 0
    assert all(name in regions.stdout for name in "abcd")

    pack_small(folder / "e", factor=9, max_batch=1)
    until(lambda: phase(worker, "e") in CALLABLE)
    assert worker.infer("e")[0] == 9.0
    assert worker.end() == 0


def test_a_plan_that_does_not_fit_ends_with_its_own_code_and_the_remedy(config_for, run, folder):
    bundle = pack_small(folder / "a", mebibytes=12, max_batch=1)
    models = [{"name": "p", "uri": f"file://{bundle.path}", "residency": "device"}]
    worker = run(config_for(model_directory=str(folder), models=models, device={"budget": "16m"}))
    refused = worker.event("worker.refused")
    assert refused["reason"] == "PlanRefused"
    assert "device.budget" in refused["message"]
    assert worker.wait() == 3


def test_a_first_model_that_needs_another_plan_starts_the_process_anew_under_its_own_number(
    config_for, run, folder, hungry
):
    worker = run(config_for(model_directory=str(folder), device={"budget": "32m"}))
    worker.wait_ready()
    shutil.copytree(hungry.path, folder / "hungry")
    worker.wait_ready()
    assert worker.popen.poll() is None
    assert worker.infer("hungry") == [5.0, 10.0, 15.0, 20.0]
    assert worker.end() == 0


def test_a_port_that_is_taken_is_named(config_for, run, folder):
    first = run(config_for(model_directory=str(folder)))
    first.wait_ready()
    taken = config_for(
        model_directory=str(folder),
        state_directory=str(folder / ".state"),
        serving={"metrics_port": first.ports["metrics_port"]},
    )
    second = run(taken, "second.yaml")
    assert second.wait() == 2
    lines = []
    while (line := second._lines.get()) is not None:
        lines.append(line)
    assert any("serving.metricsPort" in line["message"] for line in lines)


@pytest.fixture(scope="session")
def trap(tmp_path_factory):
    """Ends at once on zeros, which is what a builder runs it on, and never on anything larger."""

    def function(parameters, x):
        return jax.lax.while_loop(lambda s: jnp.sum(s) > 0, lambda s: s * parameters["one"], x)

    return pack_bundle(
        tmp_path_factory.mktemp("trap") / "trap",
        name="trap",
        function=function,
        parameters={"one": np.ones(4, np.float32)},
        inputs=[("x", np.float32, (1, 4))],
        output_names=["y"],
    )


def killed_while_it_runs(worker, config):
    """Kill a worker in the middle of an execution of the trap."""

    def call():
        with contextlib.suppress(Exception):  # the worker dies before it answers
            worker.infer("trap")

    caller = threading.Thread(target=call)
    caller.start()
    journal = config.state_directory / "journal"

    def dispatched():
        with journal.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            return b"trap" in mapped[:] and any(mapped[start] for start in range(0, len(mapped), 512))

    until(dispatched)
    worker.popen.send_signal(signal.SIGKILL)
    worker.wait()
    caller.join()


def test_the_model_that_ran_when_a_worker_was_killed_twice_is_quarantined(config_for, run, small_bundle, trap):
    models = [
        {"name": "trap", "uri": f"file://{trap.path}"},
        {"name": "good", "uri": f"file://{small_bundle.path}"},
    ]
    config = config_for(models=models)
    for _ in range(2):
        worker = run(config)
        worker.wait_ready()
        until(lambda worker=worker: phase(worker, "trap") in CALLABLE)
        assert worker.infer("good") == [2.0, 4.0, 6.0, 8.0]
        killed_while_it_runs(worker, config)

    again = run(config)
    again.wait_ready()
    models_now = {model["name"]: model for model in json.loads(again.page("/models")[1])}
    assert models_now["trap"]["phase"] == "MODEL_PHASE_REFUSED"
    assert models_now["trap"]["failure"]["reason"] == "Quarantined"
    assert models_now["trap"]["failure"]["permanent"]
    assert "static" in models_now["trap"]["failure"]["message"]
    until(lambda: again.infer("good"))
    assert again.end() == 0

    models[0]["batching"] = {"maxSize": 1}
    changed = run(config_for(models=models))
    changed.wait_ready()
    until(lambda: phase(changed, "trap") in CALLABLE)
    assert changed.infer("trap", (0.0, 0.0, 0.0, 0.0)) == [0.0, 0.0, 0.0, 0.0]
    assert changed.end() == 0
