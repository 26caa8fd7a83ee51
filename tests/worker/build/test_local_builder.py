# SPDX-License-Identifier: Apache-2.0
"""Real builder processes: what they measure, and how a bundle that fails, crashes or hangs is refused alone."""

from __future__ import annotations

import os
import queue
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ballast_contract.reasons import Reason
from ballast_worker.build.builder import BuildFailure
from ballast_worker.build.executables import deserialize
from ballast_worker.build.local import LocalBuilder
from ballast_worker.build.supervision import Outcome, Supervised
from ballast_worker.bundle.writer import pack_bundle


@pytest.fixture
def builder(store):
    local = LocalBuilder(store, parallelism=2)
    yield local
    local.close()


@pytest.fixture(scope="session")
def endless_bundle(tmp_path_factory):
    """Runs for ever on zeros, which is what a builder runs it on."""

    def function(parameters, x):
        return jax.lax.while_loop(lambda s: jnp.sum(s) == 0, lambda s: s * parameters["w"], x)

    return pack_bundle(
        tmp_path_factory.mktemp("bundles") / "endless",
        name="endless",
        function=function,
        parameters={"w": np.ones(4, np.float32)},
        inputs=[("x", np.float32, (4,))],
    )


def ignore(_):
    pass


def test_every_program_is_built_measured_and_runs(builder, small_bundle, request_for):
    said = []
    result = builder.build(request_for(small_bundle), progress=said.append)
    assert result.failure is None
    assert result.compiled == 3
    assert [dict(program.dimensions) for program in result.programs] == [{"batch": 1}, {"batch": 2}, {"batch": 4}]
    assert "compiling program batch=2 (2 of 3)" in said
    for program in result.programs:
        batch = dict(program.dimensions)["batch"]
        assert program.io_bytes == 2 * batch * 8 * 4
        assert program.run_seconds > 0
        executable = deserialize(program.file.read_bytes(), jax.devices()[0])
        weights = [jnp.full(8, 0.5, jnp.float32), jnp.eye(8, dtype=jnp.float32)]
        (output,) = executable.execute(weights, [np.ones((batch, 8), np.float32)])
        np.testing.assert_allclose(output, np.tanh(np.full((batch, 8), 1.5)), rtol=1e-6)


def test_a_second_start_builds_nothing(store, small_bundle, request_for):
    first = LocalBuilder(store, parallelism=1).build(request_for(small_bundle), progress=ignore)
    second = LocalBuilder(store, parallelism=1).build(request_for(small_bundle), progress=ignore)
    assert first.compiled == 3
    assert second.compiled == 0
    assert second.programs == first.programs


def test_only_what_is_missing_is_built(builder, store, small_bundle, request_for):
    first = builder.build(request_for(small_bundle), progress=ignore)
    first.programs[1].file.unlink()
    again = builder.build(request_for(small_bundle), progress=ignore)
    assert again.compiled == 1
    assert len(again.programs) == 3


def test_a_store_that_cannot_be_written_is_told_and_heals(builder, store, small_bundle, request_for):
    store.root.rmdir()
    store.root.touch()
    failure = builder.build(request_for(small_bundle), progress=ignore).failure
    assert failure.reason is Reason.LOAD_FAILED_WILL_RETRY
    assert f"the executable store '{store.root}' cannot be written: " in failure.message
    assert "set executableStore" in failure.message
    store.root.unlink()
    assert builder.build(request_for(small_bundle), progress=ignore).compiled == 3


def test_a_directory_in_the_place_of_a_record_is_told_and_heals(builder, store, small_bundle, request_for):
    one = replace(request_for(small_bundle), programs=(request_for(small_bundle).programs[0],))
    builder.build(one, progress=ignore)
    record = next(store.root.glob("*.json"))
    record.unlink()
    record.mkdir()
    failure = builder.build(one, progress=ignore).failure
    assert failure.reason is Reason.LOAD_FAILED_WILL_RETRY
    assert f"Is a directory: {record}" in failure.message
    record.rmdir()
    assert builder.build(one, progress=ignore).failure is None


def test_executables_that_are_gone_at_once_are_no_fault_of_the_bundle(
    builder, store, small_bundle, request_for, monkeypatch
):
    monkeypatch.setattr(store, "get", lambda _: None)
    failure = builder.build(request_for(small_bundle), progress=ignore).failure
    assert failure.reason is Reason.LOAD_FAILED_WILL_RETRY
    assert f"'{store.root}'" in failure.message


def test_integers_of_64_bits_keep_their_width(builder, tmp_path, request_for):
    with jax.enable_x64(True):
        bundle = pack_bundle(
            tmp_path / "wide",
            name="wide",
            function=lambda p, ids: p["table"][ids],
            parameters={"table": np.arange(10, dtype=np.float32)},
            inputs=[("ids", np.int64, ("batch",))],
            batch_dimension="batch",
            max_batch=1,
        )
    (program,) = builder.build(request_for(bundle), progress=ignore).programs
    with jax.enable_x64(True):
        executable = deserialize(program.file.read_bytes(), jax.devices()[0])
        assert [type_.dtype for type_ in executable.arguments] == ["float32", "int64"]
        (output,) = executable.execute([jnp.arange(10, dtype=jnp.float32)], [np.array([7], np.int64)])
    assert output.tolist() == [7.0]


def test_a_function_that_the_compiler_refuses_is_refused_alone(builder, small_bundle, tmp_path, request_for):
    def function(parameters, x):
        call = jax.ffi.ffi_call("cusolver_potrf_ffi", jax.ShapeDtypeStruct((4, 4), jnp.float32))
        return call(x * parameters["w"])

    bundle = pack_bundle(
        tmp_path / "foreign",
        name="foreign",
        function=function,
        parameters={"w": np.ones((4, 4), np.float32)},
        inputs=[("x", np.float32, (4, 4))],
        platforms=("cpu",),
    )
    result = builder.build(request_for(bundle), progress=ignore)
    assert result.programs == ()
    assert result.failure.reason is Reason.LOAD_FAILED_PERMANENT
    assert "cusolver_potrf_ffi" in result.failure.message
    assert builder.build(request_for(small_bundle), progress=ignore).failure is None


def test_a_bundle_for_another_platform_is_refused(builder, tmp_path, request_for):
    bundle = pack_bundle(
        tmp_path / "gpu-only",
        name="gpu-only",
        function=lambda p, x: x * p["w"],
        parameters={"w": np.ones(4, np.float32)},
        inputs=[("x", np.float32, (4,))],
        platforms=("cuda",),
    )
    failure = builder.build(request_for(bundle), progress=ignore).failure
    assert failure.reason is Reason.BUNDLE_INVALID
    assert "this worker runs cpu" in failure.message


def test_a_function_file_that_is_not_the_manifests_is_refused(builder, small_bundle, tmp_path, request_for):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in small_bundle.path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "function.stablehlo").write_bytes(b"x" * (copy / "function.stablehlo").stat().st_size)
    failure = builder.build(replace(request_for(small_bundle), bundle=copy), progress=ignore).failure
    assert failure.reason is Reason.BUNDLE_INVALID
    assert failure.exit_code is None


def test_other_bytes_than_those_asked_for_are_refused(builder, small_bundle, request_for):
    wrong = "sha256:" + "0" * 64
    failure = builder.build(replace(request_for(small_bundle), digest=wrong), progress=ignore).failure
    assert failure.reason is Reason.SOURCE_CHANGED
    assert small_bundle.digest in failure.message
    assert wrong in failure.message


def test_a_bundle_that_hangs_is_killed_in_time(builder, endless_bundle, request_for):
    failure = builder.build(request_for(endless_bundle, timeout_seconds=3), progress=ignore).failure
    assert failure.reason is Reason.LOAD_FAILED_PERMANENT
    assert "3 s" in failure.message
    assert "build.timeoutSeconds" in failure.message
    assert failure.exit_code == -signal.SIGKILL


def test_a_builder_that_dies_is_reported_with_its_signal(builder, endless_bundle, request_for):
    """The exit code of a builder that ran out of memory reaches the status."""

    def kill_when_running(text):
        if text.startswith("running"):
            for process in builder._running:
                os.kill(process.process.pid, signal.SIGKILL)

    failure = builder.build(request_for(endless_bundle), progress=kill_when_running).failure
    assert failure.reason is Reason.LOAD_FAILED_PERMANENT
    assert failure.exit_code == -signal.SIGKILL
    assert "SIGKILL" in failure.message
    assert "memory" in failure.message


def test_closing_kills_what_still_builds(builder, endless_bundle, small_bundle, request_for):
    running = threading.Event()
    results = []
    thread = threading.Thread(
        target=lambda: results.append(
            builder.build(
                request_for(endless_bundle), progress=lambda text: running.set() if "running" in text else None
            )
        )
    )
    thread.start()
    assert running.wait(60)
    builder.close()
    thread.join(60)
    assert results[0].failure.exit_code == -signal.SIGKILL
    assert builder.build(request_for(small_bundle), progress=ignore).failure.reason is Reason.DRAINING


def test_the_kernel_takes_the_builder_before_the_worker(builder, endless_bundle, request_for):
    scores = []

    def look(text):
        if text.startswith("running"):
            for process in builder._running:
                scores.append(int(Path(f"/proc/{process.process.pid}/oom_score_adj").read_text()))
                os.kill(process.process.pid, signal.SIGKILL)

    builder.build(request_for(endless_bundle), progress=look)
    assert scores == [1000]


def test_a_program_that_would_take_more_than_the_budget_is_refused_before_it_runs(builder, small_bundle, request_for):
    said = []
    # Weights of 288 bytes; the first program has 64 bytes of inputs and outputs, and the second 128.
    request = replace(request_for(small_bundle), memory_bytes=300)
    failure = builder.build(request, progress=said.append).failure
    assert failure.reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    assert failure.exit_code is None
    assert "program batch=1 of" in failure.message
    assert "(288 of weights, 64 of inputs and outputs" in failure.message
    assert "the device budget is 300: name fewer rows in the manifest's programs, or set a larger device.budget" in (
        failure.message
    )
    assert not any(text.startswith("running") for text in said)


def test_a_builder_that_takes_the_last_host_memory_is_killed_and_the_other_goes_on(store, endless_bundle, request_for):
    """The shortage begins when both run and ends with one of them; which of two holds more decides who goes."""
    short = threading.Event()
    local = LocalBuilder(
        store,
        parallelism=2,
        shortage=lambda: "nothing is left" if short.is_set() and len(local._running) == 2 else None,
    )
    results = []
    running = threading.Semaphore(0)

    def progress(text):
        if text.startswith("running"):
            running.release()

    def build():
        results.append(local.build(request_for(endless_bundle), progress=progress))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert running.acquire(timeout=120)
    short.set()
    for _ in range(600):
        if results:
            break
        threads[0].join(0.1) if threads[0].is_alive() else threads[1].join(0.1)
    (killed,) = results
    assert killed.failure.reason is Reason.INSUFFICIENT_HOST_MEMORY
    assert killed.failure.exit_code == -signal.SIGKILL
    assert (
        "bytes of host memory and was killed before the kernel had to choose: nothing is left" in killed.failure.message
    )
    local.close()
    for thread in threads:
        thread.join()


def test_a_bundle_is_not_compiled_for_ever_with_too_little_memory(store, small_bundle, request_for):
    local = LocalBuilder(store, parallelism=1)
    said: list[str] = []
    little = replace(request_for(small_bundle), memory_bytes=16)
    failures = [local.build(little, progress=said.append).failure for _ in range(5)]
    assert {failure.reason for failure in failures} == {Reason.INSUFFICIENT_DEVICE_MEMORY}
    assert said.count("compiling program batch=1 (1 of 3)") == 3
    assert "tried 3 times, and not again before there is more memory for it" in failures[-1].message
    assert local.build(request_for(small_bundle), progress=ignore).compiled == 3
    assert local.build(little, progress=ignore).failure is None, "what is in the store needs no memory to build"


def test_a_bundle_is_built_once_host_memory_is_there_again(store, small_bundle, request_for):
    short = threading.Event()
    short.set()
    local = LocalBuilder(store, parallelism=1, shortage=lambda: "nothing is left" if short.is_set() else None)
    for _ in range(4):
        failure = local.build(request_for(small_bundle), progress=ignore).failure
        assert failure.reason is Reason.INSUFFICIENT_HOST_MEMORY
    short.clear()
    assert local.build(request_for(small_bundle), progress=ignore).compiled == 3


def test_no_more_builders_run_at_once_than_are_allowed_and_those_that_wait_have_their_turn(
    store, small_bundle, request_for, monkeypatch
):
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()
    end, running, most = threading.Semaphore(0), set(), []

    class Watched(threading.BoundedSemaphore):
        def __enter__(self):
            if not self.acquire(blocking=False):
                seen.put("waits")
                self.acquire()

    def follow(self, message, progress):
        running.add(self)
        most.append(len(running))
        seen.put("runs")
        assert end.acquire(timeout=20)
        running.discard(self)
        return Outcome(failure=BuildFailure(Reason.LOAD_FAILED_PERMANENT, "as it was told to"))

    monkeypatch.setattr(threading, "BoundedSemaphore", Watched)
    monkeypatch.setattr(Supervised, "start", lambda _: None)
    monkeypatch.setattr(Supervised, "follow", follow)
    local = LocalBuilder(store, parallelism=2)
    with ThreadPoolExecutor(5) as callers:
        builds = [callers.submit(local.build, request_for(small_bundle), progress=ignore) for _ in range(5)]
        assert sorted(seen.get(timeout=20) for _ in builds) == ["runs", "runs", "waits", "waits", "waits"]
        end.release(5)
        assert {build.result(60).failure.message for build in builds} == {"as it was told to"}
    assert sorted(seen.get(timeout=20) for _ in range(3)) == ["runs"] * 3
    assert max(most) == 2
