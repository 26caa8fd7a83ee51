# SPDX-License-Identifier: Apache-2.0
"""An unmodified tritonclient, over HTTP and gRPC, against a worker's front end; answers compared with plain JAX."""

from __future__ import annotations

import concurrent.futures

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from helpers.serving import DTYPES
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

PROTOCOLS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(params=list(PROTOCOLS))
def triton(request):
    return PROTOCOLS[request.param]


@pytest.fixture
def client(triton, server):
    address = server.http if triton is tritonclient.http else server.grpc
    client = triton.InferenceServerClient(address, **({"network_timeout": 10.0} if triton is tritonclient.http else {}))
    yield client
    client.close()


def tensor(triton, name, array, **options):
    item = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    item.set_data_from_numpy(array, **options)
    return item


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)


def test_server_and_models_are_live_and_ready(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("affine")
    assert client.is_model_ready("affine", "1")
    assert client.is_model_ready("team.a/affine")
    assert client.get_server_metadata() is not None


def test_metadata_names_tensors_types_and_shapes(client, triton):
    if triton is tritonclient.http:
        metadata = client.get_model_metadata("sequence")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    else:
        metadata = client.get_model_metadata("sequence", as_json=True)
        for port in (*metadata["inputs"], *metadata["outputs"]):
            port["shape"] = [int(axis) for axis in port["shape"]]
    assert metadata["name"] == "sequence"
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"][0] == {"name": "tokens", "datatype": "FP32", "shape": [-1, -1]}
    assert {port["name"]: port["shape"] for port in metadata["outputs"]} == {
        "scaled": [-1, -1],
        "doubled": [-1, -1],
        "total": [-1],
    }


def test_raw_tensors_come_back_as_jax_computes_them(client, triton, affine):
    x = rows(3)
    result = client.infer("affine", [tensor(triton, "x", x)], request_id="a-7")
    np.testing.assert_allclose(result.as_numpy("y"), affine.expected(x)[0], rtol=1e-6, atol=1e-6)
    response = result.get_response()
    assert (response["id"] if isinstance(response, dict) else response.id) == "a-7"


def test_a_model_name_with_dots_and_slashes_is_reached(client, triton, affine):
    x = rows(1, 5)
    result = client.infer("team.a/affine", [tensor(triton, "x", x)])
    np.testing.assert_allclose(result.as_numpy("y"), affine.expected(x)[0], rtol=1e-6, atol=1e-6)


def test_every_dtype_that_the_protocol_has_goes_in_and_out(client, triton, typed):
    arrays = []
    for dtype in DTYPES:
        base = np.array([[0, 1, 0], [1, 1, 0]]) if dtype == "bool" else np.array([[1, 2, 3], [40, 50, 60]])
        arrays.append(base.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))
    result = client.infer(
        "typed", [tensor(triton, f"in_{dtype}", array) for dtype, array in zip(DTYPES, arrays, strict=True)]
    )
    for output, expected in zip(typed.bundle.manifest.outputs, typed.expected(*arrays), strict=True):
        got = result.as_numpy(output.name)
        np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))
        assert got.shape == (2, 3)
    large = result.as_numpy("out_int64")
    assert large.dtype == np.int64


def test_several_dimensions_are_padded_and_cut(client, triton, sequence):
    random = np.random.default_rng(3)
    for batch, length in ((1, 16), (3, 5), (2, 40), (1, 63)):
        tokens = random.normal(size=(batch, length)).astype(np.float32)
        mask = random.integers(0, 2, size=(batch, length)).astype(np.float32)
        result = client.infer("sequence", [tensor(triton, "mask", mask), tensor(triton, "tokens", tokens)])
        outputs = dict(
            zip([o.name for o in sequence.bundle.manifest.outputs], sequence.expected(tokens, mask), strict=True)
        )
        for name, expected in outputs.items():
            np.testing.assert_allclose(result.as_numpy(name), expected, rtol=1e-5, atol=1e-5)


def test_only_the_outputs_asked_for_are_sent(client, triton, sequence):
    tokens = np.ones((1, 4), np.float32)
    result = client.infer(
        "sequence",
        [tensor(triton, "tokens", tokens), tensor(triton, "mask", tokens)],
        outputs=[triton.InferRequestedOutput("total")],
    )
    np.testing.assert_allclose(result.as_numpy("total"), [12.0])
    assert result.as_numpy("scaled") is None


def test_json_tensors_in_both_directions(server, affine):
    x = rows(2, 9)
    with tritonclient.http.InferenceServerClient(server.http) as client:
        result = client.infer(
            "affine",
            [tensor(tritonclient.http, "x", x, binary_data=False)],
            outputs=[tritonclient.http.InferRequestedOutput("y", binary_data=False)],
        )
        np.testing.assert_allclose(result.as_numpy("y"), affine.expected(x)[0], rtol=1e-6, atol=1e-6)
        assert "parameters" not in result.get_output("y")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests_are_read(server, affine, algorithm):
    x = rows(4, 2)
    with tritonclient.http.InferenceServerClient(server.http) as client:
        result = client.infer("affine", [tensor(tritonclient.http, "x", x)], request_compression_algorithm=algorithm)
        np.testing.assert_allclose(result.as_numpy("y"), affine.expected(x)[0], rtol=1e-6, atol=1e-6)


def test_many_concurrent_callers_each_get_their_own_rows(client, triton, server, affine):
    address = server.http if triton is tritonclient.http else server.grpc

    def call(seed: int) -> None:
        with triton.InferenceServerClient(address) as own:
            for step in range(5):
                x = rows(1 + seed % 3, seed * 100 + step)
                result = own.infer("affine", [tensor(triton, "x", x)])
                np.testing.assert_allclose(result.as_numpy("y"), affine.expected(x)[0], rtol=1e-6, atol=1e-6)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(8)))


def fault(client, triton, status: str, model: str, *inputs, **options) -> str:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, list(inputs), **options)
    code = {"NOT_FOUND": "404", "INVALID_ARGUMENT": "400"}[status]
    assert caught.value.status() == (code if triton is tritonclient.http else f"StatusCode.{status}")
    return caught.value.message()


def test_bad_requests_say_what_was_sent_and_what_is_wanted(client, triton):
    x = rows(1)
    message = fault(client, triton, "NOT_FOUND", "afine", tensor(triton, "x", x))
    assert message == "there is no model 'afine' in this pool"
    message = fault(client, triton, "NOT_FOUND", "affine", tensor(triton, "x", x), model_version="3")
    assert message == "model 'affine' has no version '3': leave the version out, or ask for '1'"
    message = fault(client, triton, "INVALID_ARGUMENT", "affine", tensor(triton, "xx", x))
    assert message == "there is no input 'xx': did you mean 'x'?"
    message = fault(client, triton, "INVALID_ARGUMENT", "affine", tensor(triton, "x", x.astype(np.float64)))
    assert message == "input 'x' was sent as FP64; FP32 is wanted"
    message = fault(client, triton, "INVALID_ARGUMENT", "affine", tensor(triton, "x", np.zeros((2, 9), np.float32)))
    assert message == "input 'x' has shape [2, 9]; [batch, 8] is wanted"
    message = fault(client, triton, "INVALID_ARGUMENT", "affine", tensor(triton, "x", rows(9)))
    assert message.startswith("no program is large enough for batch=9: the largest are batch=8; batch=4")
    message = fault(client, triton, "INVALID_ARGUMENT", "affine")
    assert message == "input 'x' is missing"
    message = fault(
        client, triton, "INVALID_ARGUMENT", "affine", tensor(triton, "x", x), outputs=[triton.InferRequestedOutput("z")]
    )
    assert message == "there is no output 'z'; outputs are y"
    words = np.array([[b"a"] * 8], dtype=object)
    message = fault(client, triton, "INVALID_ARGUMENT", "affine", tensor(triton, "x", words))
    assert message == "input 'x' was sent as BYTES, which no model here takes; FP32 is wanted"
