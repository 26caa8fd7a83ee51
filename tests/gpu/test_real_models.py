# SPDX-License-Identifier: Apache-2.0
"""A whole worker on the GPU with the real sample models: the same answers as on the CPU, and a plan that holds.

GPU_MODELS names a folder with sample bundles (see e2e/samples/models/build.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest
import yaml

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
HTTP, GRPC, METRICS, CONTROL, INTROSPECTION = 18000, 18001, 18002, 18003, 18004
TOLERANCE = 5e-3
"""Largest difference of an element: the GPU multiplies float32 matrices in TF32, with ten bits of mantissa."""

REFERENCE = """
import os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np
from ballast_worker.bundle.reader import open_bundle
bundle, source, target = sys.argv[1:]
bundle = open_bundle(bundle)
buffer = np.empty(bundle.layout.nbytes, np.uint8)
with bundle.open_weights() as weights:
    weights.read_into(memoryview(buffer), layout=bundle.layout)
arrays = [buffer[p.offset : p.offset + p.spec.nbytes].view(p.spec.dtype).reshape(p.spec.shape) for p in bundle.layout.tensors]
inputs = np.load(source)
exported = jax.export.deserialize(bytearray(bundle.function_bytes()))
outputs = jax.jit(exported.call)(*arrays, *[inputs[port.name] for port in bundle.manifest.inputs])
np.savez(target, **{port.name: np.asarray(value) for port, value in zip(bundle.manifest.outputs, outputs)})
"""


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def models():
    folder = os.environ.get("GPU_MODELS")
    if not folder:
        pytest.skip("GPU_MODELS names no folder with sample bundles")
    return Path(folder)


@pytest.fixture(scope="module")
def worker(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    config = {
        "backend": "cuda",
        "modelDirectory": str(models),
        "executableStore": str(folder / "executables"),
        "stateDirectory": str(folder / "state"),
        "device": {"budget": "4g"},
        "host": {"budget": "512m", "directory": str(folder / "host")},
        "serving": {
            "host": "127.0.0.1", "httpPort": HTTP, "grpcPort": GRPC, "metricsPort": METRICS, "controlPort": CONTROL,
            "introspectionPort": INTROSPECTION,
        },
    }  # fmt: skip
    path = folder / "worker.yaml"
    path.write_text(yaml.safe_dump(config))
    log = folder / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "ballast_worker.control.main", "--config", str(path)], stdout=sink, stderr=sink
        )
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                get(HTTP, "/v2/health/ready")
                break
            except OSError as error:
                if isinstance(error, HTTPError):
                    error.close()
                assert process.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.2)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        print(log.read_text()[-6000:])


def inputs_of(name):
    rng = np.random.default_rng(7)
    if name.startswith("crepe"):
        wave = np.sin(2 * np.pi * 440 * np.arange(1024) / 16000)
        return {"frames": np.stack([wave / wave.std()] * 2).astype(np.float32)}
    lengths = np.array([9, 20, 32])
    mask = (np.arange(32) < lengths[:, None]).astype(np.int32)
    ids = rng.integers(1000, 20000, (3, 32)).astype(np.int32) * mask
    return {"input_ids": ids, "attention_mask": mask}


def infer(name, inputs):
    types = {"int32": "INT32", "float32": "FP32"}
    body = {
        "inputs": [
            {"name": key, "datatype": types[value.dtype.name], "shape": value.shape, "data": value.ravel().tolist()}
            for key, value in inputs.items()
        ]
    }
    request = urllib.request.Request(f"http://127.0.0.1:{HTTP}/v2/models/{name}/infer", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        outputs = json.loads(answer.read())["outputs"]
    return {o["name"]: np.array(o["data"], np.float32).reshape(o["shape"]) for o in outputs}


@pytest.mark.parametrize("name", ["minilm", "crepe-tiny"])
def test_a_real_model_answers_as_on_the_cpu(worker, models, tmp_path, name):
    inputs = inputs_of(name)
    np.savez(tmp_path / "in.npz", **inputs)
    subprocess.run(
        [sys.executable, "-c", REFERENCE, str(models / name), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")],
        check=True,
    )
    with np.load(tmp_path / "out.npz") as file:
        expected = dict(file)
    found = infer(name, inputs)
    for key, value in expected.items():
        if key == "pitch_hertz":
            np.testing.assert_allclose(found[key], value, rtol=5e-3)
        else:
            difference = float(np.abs(found[key] - value).max())
            print(f"{name} {key}: largest difference {difference:.2e}")
            assert difference <= TOLERANCE
    if name == "minilm":
        cosines = (expected["sentence_embedding"] * found["sentence_embedding"]).sum(1)
        assert cosines.min() >= 0.9999


def test_the_plan_sums_to_the_budget_and_the_drivers_figure_is_beside_it(worker):
    plan = json.loads(get(INTROSPECTION, "/plan"))
    print(json.dumps(plan, indent=1))
    assert sum(int(line["bytes"]) for line in plan["lines"]) == 4 << 30
    used = plan.get("driver_used_bytes")
    assert used is not None, "this test wants the device for itself"
    slack = next(int(line["bytes"]) for line in plan["lines"] if line["line"] == "slack")
    assert int(used) <= (4 << 30) - slack + (64 << 20)


def test_device_memory_does_not_grow_while_models_come_and_go(worker, models):
    names = sorted(p.name for p in models.iterdir() if (p / "manifest.yaml").exists())
    for name in names:
        infer(name, inputs_of(name))
    before = json.loads(get(INTROSPECTION, "/plan")).get("driver_used_bytes")
    for _ in range(50):
        for name in names:
            infer(name, inputs_of(name))
    assert json.loads(get(INTROSPECTION, "/plan")).get("driver_used_bytes") == before
