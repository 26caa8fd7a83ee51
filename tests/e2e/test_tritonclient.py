# SPDX-License-Identifier: Apache-2.0
"""An unmodified tritonclient against the cluster's own Services: no special settings."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from e2e.demo import calling

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(params=["minilm", "default-pool"])
def address(request, world, namespace):
    """A Service's address; this machine has a route to the Services of the local cluster."""
    return world.get("service", request.param, "-n", namespace)["spec"]["clusterIP"]


def tensors(module):
    request = calling.embedding_request(calling.SENTENCES)
    made = []
    for tensor in request["inputs"]:
        values = np.array(tensor["data"], np.int32)
        made.append(module.InferInput(tensor["name"], list(values.shape), "INT32"))
        made[-1].set_data_from_numpy(values)
    return made


def check(vectors):
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    cosines = vectors @ vectors.T
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-4)
    assert cosines[0, 1] > 0.7
    assert cosines[0, 2] < 0.2


def test_a_model_answers_the_triton_client_over_http_with_binary_tensors(world, address):
    with tritonclient.http.InferenceServerClient(f"{address}:8000") as client:
        assert client.is_server_live()
        assert client.is_model_ready("all-MiniLM-L6-v2")
        name = client.get_model_metadata("all-MiniLM-L6-v2")["outputs"][0]["name"]
        answer = client.infer("all-MiniLM-L6-v2", tensors(tritonclient.http))
        check(answer.as_numpy(name))


def test_a_model_answers_the_triton_client_over_grpc(world, address):
    with tritonclient.grpc.InferenceServerClient(f"{address}:8001") as client:
        assert client.is_server_ready()
        assert client.is_model_ready("all-MiniLM-L6-v2")
        name = client.get_model_metadata("all-MiniLM-L6-v2").outputs[0].name
        answer = client.infer("all-MiniLM-L6-v2", tensors(tritonclient.grpc))
        check(answer.as_numpy(name))


def test_grpc_reaches_a_model_with_a_slash_in_its_name_through_the_pool(world, namespace):
    address = world.get("service", "default-pool", "-n", namespace)["spec"]["clusterIP"]
    with tritonclient.grpc.InferenceServerClient(f"{address}:8001") as client:
        name = client.get_model_metadata("minilm/3-layers").outputs[0].name
        assert client.infer("minilm/3-layers", tensors(tritonclient.grpc)).as_numpy(name).shape == (3, 384)
