# SPDX-License-Identifier: Apache-2.0
"""Bodies and messages: what is read, what is refused and in which words, and that raw tensors are not copied."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from helpers.bodies import GOOD, IDS, TWO, X, binary, body, infer, manifest, number, port
from hypothesis import given
from hypothesis import strategies as st

from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.serving import grpc_codec, http_codec, wire
from ballast_worker.serving.signature import Signature
from ballast_worker.serving.tensors import RequestError, from_values


def test_raw_tensors_of_a_body_are_views_of_it_in_manifest_order():
    data, head = body(IDS.tobytes(), X.tobytes(), id="7", inputs=[binary("ids", "INT8", IDS), binary("x", "FP32", X)])
    request = http_codec.decode(TWO, data, head)
    np.testing.assert_array_equal(request.inputs[0], X)
    np.testing.assert_array_equal(request.inputs[1], IDS)
    assert request.id == "7"
    assert request.dimensions == {"batch": 2, "length": 4}
    whole = np.frombuffer(data, np.uint8)
    assert all(np.shares_memory(array, whole) for array in request.inputs)


def test_numbers_may_be_nested_or_flat_and_mixed_with_raw_tensors():
    flat = number("x", "FP32", X.reshape(-1)) | {"shape": [2, 3]}
    data, head = body(IDS.tobytes(), inputs=[flat, binary("ids", "INT8", IDS)])
    request = http_codec.decode(TWO, data, head)
    np.testing.assert_array_equal(request.inputs[0], X)
    request = http_codec.decode(TWO, body(inputs=[number("x", "FP32", X), number("ids", "INT8", IDS)])[0], None)
    np.testing.assert_array_equal(request.inputs[1], IDS)
    assert [(tensor.name, raw) for tensor, raw in request.outputs] == [("y", False), ("z", False)]


def test_outputs_are_raw_or_numbers_as_they_were_asked_for():
    inputs = [number("x", "FP32", X), number("ids", "INT8", IDS)]
    wanted = [{"name": "z"}, {"name": "y", "parameters": {"binary_data": True}}]
    request = http_codec.decode(TWO, body(inputs=inputs, outputs=wanted, id="q")[0], None)
    y, z = np.float32([[1, 2, 3], [4, np.nan, 6]]), np.array([0.5, 2.0], ml_dtypes.bfloat16)
    pieces, head = http_codec.encode("m", "1", request, [y, z])
    document = json.loads(bytes(pieces[0]))
    assert head == len(pieces[0])
    assert document == {
        "model_name": "m",
        "model_version": "1",
        "id": "q",
        "outputs": [
            {"name": "z", "datatype": "BF16", "shape": [2], "data": [0.5, 2.0]},
            {"name": "y", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}},
        ],
    }
    assert bytes(pieces[1]) == y.tobytes()
    assert np.shares_memory(np.frombuffer(pieces[1], np.uint8), y), "a raw output is not copied"
    everything = http_codec.decode(
        TWO, body(inputs=inputs, parameters={"binary_data_output": True, "timeout": 2_000_000})[0], None
    )
    assert [raw for _, raw in everything.outputs] == [True, True]
    assert everything.timeout_seconds == 2.0
    numbers = http_codec.decode(TWO, body(inputs=inputs, outputs=[{"name": "y"}])[0], None)
    pieces, head = http_codec.encode("m", "1", numbers, [y[:, ::-1], z])
    assert head is None
    assert json.loads(bytes(pieces[0]))["outputs"][0]["data"] == [3.0, 2.0, 1.0, 6.0, None, 4.0]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"inputs": "x"}, "'inputs' is not a list of JSON objects"),
        ({}, "input 'x', 'ids' is missing"),
        ({"inputs": [*GOOD, GOOD[0]]}, "input 'x' was sent twice"),
        ({"inputs": [GOOD[0], number("idz", "INT8", IDS)]}, "there is no input 'idz': did you mean 'ids'?"),
        ({"inputs": [GOOD[0], number("tokens", "INT8", IDS)]}, "there is no input 'tokens'; inputs are x, ids"),
        ({"inputs": [{"datatype": "INT8"}]}, "an input has no name; inputs are x, ids"),
        ({"inputs": [GOOD[0] | {"datatype": "FP64"}]}, "input 'x' was sent as FP64; FP32 is wanted"),
        ({"inputs": [GOOD[0] | {"shape": [2]}]}, r"input 'x' has shape \[2\]; \[batch, 3\] is wanted"),
        ({"inputs": [GOOD[0] | {"shape": [0, 3]}]}, r"input 'x' has shape \[0, 3\]; \[batch, 3\] is wanted"),
        ({"inputs": [GOOD[0] | {"shape": [2.0, 3]}]}, r"input 'x' has shape \[2.0, 3\]; \[batch, 3\] is wanted"),
        ({"inputs": [GOOD[0] | {"shape": None}]}, r"has shape no list of integers; \[batch, 3\] is wanted"),
        ({"inputs": [GOOD[0] | {"shape": "23"}]}, r"has shape no list of integers; \[batch, 3\] is wanted"),
        ({"inputs": [GOOD[0] | {"data": [1, 2]}]}, r"has 2 values; 6 are wanted for shape \[2, 3\] of FP32"),
        ({"inputs": [GOOD[0] | {"data": [[1, 2, 3], [4]]}]}, "lists in 'data' differ in length or depth"),
        ({"inputs": [GOOD[0] | {"data": ["a"] * 6}]}, "input 'x' has values that are not FP32"),
        ({"inputs": [GOOD[0] | {"data": [None] * 6}]}, "input 'x' has values that are not FP32"),
        ({"inputs": [GOOD[0] | {"data": [1e300] * 6}]}, "input 'x' has values outside the range of FP32"),
        ({"inputs": [GOOD[0] | {"data": 5}]}, "input 'x' has no list of values in 'data'"),
        ({"inputs": [GOOD[1] | {"data": [200] * 8}]}, "input 'ids' has values outside the range of INT8"),
        ({"inputs": [GOOD[1] | {"data": [1.5] * 8}]}, "input 'ids' has values that are not INT8"),
        (
            {"inputs": [GOOD[0], number("ids", "INT8", IDS[:1])]},
            "input 'ids' has batch 1, another input has batch 2: one request has one size",
        ),
        (
            {"inputs": [number("x", "FP32", X), number("ids", "INT8", np.zeros((2, 9)).astype(int))]},
            "no program is large enough for batch=2,length=9: the largest are batch=1,length=64; batch=4,length=8",
        ),
        ({"inputs": GOOD, "outputs": [{"name": "w"}]}, "there is no output 'w'; outputs are y, z"),
        ({"inputs": GOOD, "outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "not offered"),
        ({"inputs": GOOD, "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]}, "not offered"),
        ({"inputs": [GOOD[0] | {"parameters": {"shared_memory_region": "r"}}]}, "in shared memory, which is not offered"),
        ({"inputs": [GOOD[0] | {"parameters": 3}]}, "'parameters' of input 'x' is not a JSON object"),
        ({"inputs": GOOD, "parameters": {"timeout": -1}}, "parameter timeout is -1: it is a whole number of microsec"),
        ({"inputs": GOOD, "id": 4}, "'id' is not a text"),
    ],
)  # fmt: skip
def test_a_bad_body_is_refused_with_what_was_sent_and_what_is_wanted(document, message):
    with pytest.raises(RequestError, match=message):
        http_codec.decode(TWO, json.dumps(document).encode(), None)


@pytest.mark.parametrize(
    ("data", "length", "message"),
    [
        (b"{", None, "the request is not valid JSON"),
        (b"[]", None, "the request is not a JSON object"),
        (b"{}", 3, "Inference-Header-Content-Length is 3; the body has 2 bytes"),
        (b"{}", 0, "Inference-Header-Content-Length is 0; the body has 2 bytes"),
        (b"{}abc", 2, "3 bytes follow the last raw input"),
        (b"\xff\xfe{}", None, "the request is not valid JSON"),
    ],
)
def test_a_body_that_is_no_request_is_refused(data, length, message):
    with pytest.raises(RequestError, match=message):
        http_codec.decode(TWO, data, length)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (25, "input 'x' has binary_data_size 25; 24 bytes of raw data are left for it"),
        (-1, "input 'x' has binary_data_size -1; 24 bytes of raw data are left for it"),
        (True, "input 'x' has binary_data_size True"),
        (20, r"input 'x' has 20 bytes; 24 are wanted for shape \[2, 3\] of FP32"),
    ],
)
def test_sizes_of_raw_tensors_are_checked(size, message):
    data, head = body(X.tobytes(), inputs=[binary("x", "FP32", X, size)])
    with pytest.raises(RequestError, match=message):
        http_codec.decode(TWO, data, head)


def test_bytes_that_are_neither_0_nor_1_are_no_booleans():
    signature = Signature(manifest([("b", "bool", (2,))], [("y", "bool", (2,))]))
    data, head = body(
        b"\x01\x02", inputs=[{"name": "b", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}}]
    )
    with pytest.raises(RequestError, match="has bytes other than 0 and 1"):
        http_codec.decode(signature, data, head)


def test_a_dtype_that_the_protocol_cannot_carry_is_named():
    signature = Signature(manifest([("x", "float8_e4m3fn", (2,))], [("y", "complex64", (2,))]))
    with pytest.raises(
        RequestError, match="input 'x': the protocol has no datatype for float8_e4m3fn: pack the bundle"
    ):
        signature.input("x", "FLOAT8_E4M3FN", [2])
    with pytest.raises(RequestError, match="output 'y': the protocol has no datatype for complex64"):
        signature.all_outputs(binary=True)


def test_integers_of_64_bits_keep_every_bit():
    signature = Signature(manifest([("u", "uint64", (3,)), ("i", "int64", (2,))], [("y", "bool", (2,))]))
    values = [0, 2**63, 2**64 - 1]
    tensor, shape = signature.input("u", "UINT64", [3])
    assert from_values(tensor, shape, values).tolist() == values
    with pytest.raises(RequestError, match="outside the range of UINT64"):
        from_values(tensor, shape, [-1, 2**63, 1])
    with pytest.raises(RequestError, match="outside the range"):
        from_values(tensor, shape, [-1, 2, 1])
    tensor, shape = signature.input("i", "INT64", [2])
    assert from_values(tensor, shape, [-(2**63), 2**63 - 1]).tolist() == [-(2**63), 2**63 - 1]
    with pytest.raises(RequestError, match="outside the range"):
        from_values(tensor, shape, [2**63, 2**63])


def test_raw_inputs_of_a_message_are_views_of_it():
    message = infer(
        id="9",
        inputs=[port("x", "FP32", [2, 3]), port("ids", "INT8", [2, 4])],
        raw_input_contents=[X.tobytes(), IDS.tobytes()],
    ).SerializeToString()
    head, raw = grpc_codec.parse(message)
    request = grpc_codec.decode(TWO, head, raw)
    np.testing.assert_array_equal(request.inputs[0], X)
    whole = np.frombuffer(message, np.uint8)
    assert all(np.shares_memory(array, whole) for array in request.inputs)
    answer = pb.ModelInferResponse.FromString(
        grpc_codec.encode("m", "1", request, [X, X[0].astype(ml_dtypes.bfloat16)])
    )
    assert answer.id == "9"
    assert [(o.name, o.datatype, list(o.shape)) for o in answer.outputs] == [("y", "FP32", [2, 3]), ("z", "BF16", [3])]
    assert answer.raw_output_contents[0] == X.tobytes()


def test_typed_contents_are_read():
    head, raw = grpc_codec.parse(
        infer(
            inputs=[
                port("x", "FP32", [2, 3], fp32_contents=X.reshape(-1).tolist()),
                port("ids", "INT8", [2, 4], int_contents=IDS.reshape(-1).tolist()),
            ]
        ).SerializeToString()
    )
    request = grpc_codec.decode(TWO, head, raw)
    np.testing.assert_array_equal(request.inputs[0], X)
    np.testing.assert_array_equal(request.inputs[1], IDS)
    assert request.inputs[1].dtype == np.int8


def test_messages_that_contradict_themselves_are_refused():
    for message, words in (
        (infer(inputs=[port("x", "FP32", [2, 3])], raw_input_contents=[b"", b""]), "2 raw_input_contents for 1 inputs"),
        (
            infer(inputs=[port("x", "FP32", [2, 3], fp32_contents=[1.0])], raw_input_contents=[X.tobytes()]),
            "has contents beside raw_input_contents",
        ),
        (infer(inputs=[port("x", "FP32", [2, 3], fp32_contents=[1.0])]), "has 1 values; 6 are wanted"),
        (infer(inputs=[port("ids", "INT8", [1, 1], int_contents=[300])]), "outside the range of INT8"),
    ):
        with pytest.raises(RequestError, match=words):
            grpc_codec.decode(TWO, *grpc_codec.parse(message.SerializeToString()))
    with pytest.raises(RequestError, match="no ModelInferRequest"):
        grpc_codec.parse(b"\x0a\xff")
    half = Signature(manifest([("h", "float16", (1,))], [("y", "float16", (1,))]))
    with pytest.raises(RequestError, match="send it in raw_input_contents"):
        grpc_codec.decode(half, *grpc_codec.parse(infer(inputs=[port("h", "FP16", [1])]).SerializeToString()))


@given(
    names=st.lists(st.text(max_size=5), max_size=4),
    raw=st.lists(st.binary(max_size=300), max_size=4),
    id=st.text(max_size=200),
)
def test_splitting_a_message_takes_out_exactly_the_raw_tensors(names, raw, id):  # noqa: A002 - the field's name
    message = infer(id=id, inputs=[port(name, "FP32", [1, -1]) for name in names], raw_input_contents=raw)
    rest, taken = wire.split(message.SerializeToString(), 7)
    assert [bytes(piece) for piece in taken] == raw
    del message.raw_input_contents[:]
    assert pb.ModelInferRequest.FromString(rest) == message


@given(st.binary(max_size=60))
def test_any_bytes_are_split_or_refused_and_never_crash(data):
    try:
        rest, taken = wire.split(data, 7)
    except wire.WireError:
        return
    assert len(rest) + sum(map(len, taken)) <= len(data)
