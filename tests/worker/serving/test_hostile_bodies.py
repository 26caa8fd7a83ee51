# SPDX-License-Identifier: Apache-2.0
"""Small bodies that would take much memory, long answers, or a fault of ours: refused in words, at their own size."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.bodies import GOOD, TWO, X, body, infer, manifest, port

from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.serving import grpc_codec, http_codec
from ballast_worker.serving.http_handler import _header_length
from ballast_worker.serving.service import Service
from ballast_worker.serving.signature import Signature
from ballast_worker.serving.tensors import RequestError, from_values

LONG = "x" * (64 << 10)
DEEP = json.loads("[" * 900 + "]" * 900)


@pytest.fixture
def small() -> Iterator[None]:
    """Whatever happens in the test takes less than 8 MiB at any moment."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def decode(**document):
    return http_codec.decode(TWO, body(**document)[0], None)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "data",
    [[LONG, *["a"] * 300], [["a"] * 3, [LONG, *["b"] * 2]], LONG, [{LONG: 1}] * 6, [[LONG], 1.0, 2.0, 3.0, 4.0, 5.0]],
)
def test_text_among_numbers_takes_no_more_than_its_own_size(data):
    with pytest.raises(RequestError, match=r"not FP32|differ in length|no list of values"):
        decode(inputs=[GOOD[0] | {"data": data}])


@pytest.mark.parametrize(
    ("datatype", "data", "words"),
    [
        ("FP32", [True] * 6, "values that are not FP32"),
        ("FP32", [1.0, 2.0, 3.0, 4.0, 5.0, True], "values that are not FP32"),
        ("FP32", ["1.5"] * 6, "values that are not FP32"),
        ("FP32", [1.0, 2.0, 3.0, 4.0, 5.0, None], "values that are not FP32"),
        ("FP32", [1.0, 2.0, 3.0, 4.0, 5.0, [6.0]], "differ in length or depth"),
        ("FP32", [[1.0, 2.0], [3.0, 4.0, 5.0, 6.0]], "differ in length or depth"),
        ("FP32", DEEP, "0 values; 6 are wanted"),
        ("FP16", [70000.0] * 6, "outside the range of FP16"),
        ("BF16", [3.4e38] * 6, "outside the range of BF16"),
        ("FP64", [0] * 7, "7 values; 6 are wanted"),
        ("INT32", [1.0] * 6, "values that are not INT32"),
        ("INT32", [1 << 31] * 6, "outside the range of INT32"),
        ("UINT8", [-1] * 6, "outside the range of UINT8"),
        ("UINT64", [1e19] * 6, "values that are not UINT64"),
        ("BOOL", [0] * 6, "values that are not BOOL"),
    ],
)
def test_data_of_another_kind_or_form_is_refused(datatype, data, words):
    dtype = {"FP": "float", "BF": "bfloat", "IN": "int", "UI": "uint", "BO": "bool"}[datatype[:2]]
    digits = "".join(filter(str.isdigit, datatype))
    signature = Signature(manifest([("x", dtype + digits, (2, 3))], [("y", "bool", (2,))]))
    tensor, shape = signature.input("x", datatype, [2, 3])
    with pytest.raises(RequestError, match=words):
        from_values(tensor, shape, data)


def test_numbers_nested_deeper_than_their_shape_are_read_in_order():
    data = X.tolist()
    for _ in range(200):
        data = [data]
    request = decode(inputs=[GOOD[0] | {"data": data}, GOOD[1]])
    np.testing.assert_array_equal(request.inputs[0], X)


def test_an_output_is_answered_once_or_refused():
    wanted = [{"name": "y"}, {"name": "z"}, {"name": "y", "parameters": {"binary_data": True}}]
    with pytest.raises(RequestError, match="output 'y' was asked for twice: name it once"):
        decode(inputs=GOOD, outputs=wanted)
    message = infer(
        inputs=[port("x", "FP32", [1, 3]), port("ids", "INT8", [1, 1])], raw_input_contents=[bytes(12), b"1"]
    )
    message.outputs.extend([pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in "yzy"])
    with pytest.raises(RequestError, match="output 'y' was asked for twice: name it once"):
        grpc_codec.decode(TWO, *grpc_codec.parse(message.SerializeToString()))


@pytest.mark.usefixtures("small")
def test_a_message_of_very_many_empty_tensors_is_refused_before_they_are_taken_out():
    with pytest.raises(RequestError, match="more than 4096 fields"):
        grpc_codec.parse(b"\x3a\x00" * 100_000)


@pytest.mark.usefixtures("small")
def test_typed_contents_are_counted_before_they_are_read():
    message = infer(inputs=[port("x", "FP32", [2, 3]), port("ids", "INT8", [1, 1])])
    message.inputs[1].contents.int_contents.extend(bytes(100_000))
    message.inputs[0].contents.fp32_contents.extend(X.reshape(-1).tolist())
    with pytest.raises(RequestError, match="100000 values; 1 are wanted"):
        grpc_codec.decode(TWO, *grpc_codec.parse(message.SerializeToString()))


def test_an_axis_of_no_length_makes_no_array_of_any_size():
    signature = Signature(
        manifest([("x", "float32", (0, "a"))], [("y", "bool", (2,))], dimensions=("a",), programs=[{"a": 1}])
    )
    item = {"name": "x", "datatype": "FP32", "shape": [0, (1 << 63) - 1]}
    for given in ({"data": []}, {"parameters": {"binary_data_size": 0}}):
        with pytest.raises(RequestError, match=r"input 'x' has shape \[0, "):
            http_codec.decode(signature, body(inputs=[item | given])[0], None)


@pytest.mark.parametrize("sent", [LONG, DEEP, {"a": DEEP}, [LONG] * 3])
def test_what_was_sent_is_repeated_in_part_only(sent):
    for document in (
        {"inputs": [GOOD[0] | {"name": sent}]},
        {"inputs": [GOOD[0] | {"datatype": sent}]},
        {"inputs": [GOOD[0] | {"shape": sent}]},
        {"inputs": [GOOD[0] | {"parameters": {"binary_data_size": sent}}]},
        {"inputs": GOOD, "outputs": [{"name": sent}]},
        {"inputs": GOOD, "parameters": {"timeout": sent}},
    ):
        with pytest.raises(RequestError) as error:
            decode(**document)
        assert len(str(error.value)) < 2000


def test_names_of_models_and_versions_are_repeated_in_part_only():
    class Nothing:
        def find(self, model):
            del model

    service = Service(None, Nothing(), None, timeout_seconds=1, clock=lambda: 0.0, max_waiting=1)
    for model, version in ((LONG, ""), (LONG, LONG)):
        for forwarded in (False, True):
            assert len(service.find(model, version, forwarded=forwarded).message) < 1000


@pytest.mark.parametrize("value", ["9" * 400, "1" * 5000, "-1", "1.5", "", "٣"])
def test_a_timeout_that_is_no_number_of_64_bits_is_refused(value):
    with pytest.raises(RequestError, match="it is a whole number of microseconds"):
        http_codec.timeout(value)


def test_a_header_length_of_very_many_digits_is_refused():
    with pytest.raises(RequestError, match="it is a number of bytes"):
        _header_length(b"1" * 5000)
