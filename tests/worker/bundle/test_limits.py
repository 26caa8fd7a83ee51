# SPDX-License-Identifier: Apache-2.0
"""What tensors may be, wherever they are read."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter, ValidationError

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.limits import MAX_BYTES, MAX_RANK
from ballast_worker.bundle.parts import Port, TensorName
from ballast_worker.bundle.safetensors import parse_header

RULE = "a tensor's name is 1 to 512 printable characters"


def header(name: str, shape: list[int]) -> bytes:
    return json.dumps({name: {"dtype": "U8", "shape": shape, "data_offsets": [0, 1]}}).encode()


def read(name: str = "w", shape: tuple[int, ...] = (1,)) -> None:
    raw = header(name, list(shape))
    parse_header(raw, file_bytes=8 + len(raw) + 1, file="w")


@pytest.mark.parametrize("name", ["", "a" * 513, "a\nb", "\x00"])
def test_a_name_that_a_manifest_refuses_a_safetensors_file_refuses_alike(name: str):
    with pytest.raises(ValidationError, match=RULE):
        TypeAdapter(TensorName).validate_python(name)
    with pytest.raises(BundleError, match=RULE):
        read(name)


@pytest.mark.parametrize("name", ["a", "a" * 512, "größe", "a b"])
def test_a_name_that_a_manifest_takes_a_safetensors_file_takes_too(name: str):
    assert TypeAdapter(TensorName).validate_python(name) == name
    read(name)


def test_as_many_axes_are_taken_by_both_and_not_one_more():
    axes = (1,) * MAX_RANK
    Port(name="w", dtype="uint8", shape=axes)
    read(shape=axes)
    with pytest.raises(ValidationError, match=f"at most {MAX_RANK} items"):
        Port(name="w", dtype="uint8", shape=(*axes, 1))
    with pytest.raises(BundleError, match=f"at most {MAX_RANK} are read"):
        read(shape=(*axes, 1))


def test_a_size_beyond_the_limit_is_refused_before_it_is_multiplied():
    with pytest.raises(BundleError, match=f"between 0 and {MAX_BYTES}"):
        read(shape=(MAX_BYTES + 1,))
