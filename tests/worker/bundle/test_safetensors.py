# SPDX-License-Identifier: Apache-2.0
"""The strict reader of safetensors headers."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.layout import TensorSpec
from ballast_worker.bundle.safetensors import (
    CODE_OF_DTYPE,
    MAX_HEADER_BYTES,
    SUB_BYTE_CODES,
    build_header,
    parse_header,
    read_header,
)


def tensor(dtype="F32", shape=(2,), offsets=(0, 8), **extra) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **extra}


def parse(document, *, data_bytes: int) -> object:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_header(raw, file_bytes=8 + len(raw) + data_bytes, file="w")


specs = st.builds(
    TensorSpec,
    name=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20),
    dtype=st.sampled_from(sorted(CODE_OF_DTYPE)),
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
)


@given(st.lists(specs, max_size=10, unique_by=lambda spec: spec.name))
def test_what_is_written_is_read_back(tensors):
    header = build_header(tensors)
    assert len(header) % 8 == 0
    read = parse_header(header[8:], file_bytes=len(header) + sum(spec.nbytes for spec in tensors), file="w")
    assert [entry.spec for entry in read.entries.values()] == tensors
    assert read.data_start == len(header)


@given(st.lists(specs, min_size=1, max_size=6, unique_by=lambda spec: spec.name), st.data())
def test_a_header_with_one_number_changed_is_refused(tensors, data):
    header = build_header(tensors)
    size = len(header) + sum(spec.nbytes for spec in tensors)
    document = json.loads(header[8:])
    name = data.draw(st.sampled_from(sorted(document)))
    which = data.draw(st.sampled_from([0, 1]))
    document[name]["data_offsets"][which] += data.draw(st.integers(-9, 9).filter(bool))
    raw = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode().ljust(len(header) - 8)
    with pytest.raises(BundleError):
        parse_header(raw, file_bytes=size + len(raw) - len(header) + 8, file="w")


@given(st.binary(max_size=64), st.integers(0, 1000))
def test_any_bytes_are_refused_or_account_for_every_byte(raw, data_bytes):
    try:
        header = parse_header(raw, file_bytes=8 + len(raw) + data_bytes, file="w")
    except BundleError:
        return
    assert sum(entry.stop - entry.start for entry in header.entries.values()) == data_bytes


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.text(max_size=5) | st.just("__metadata__"),
        json_values
        | st.fixed_dictionaries(
            {
                "dtype": json_values | st.just("F32"),
                "shape": json_values,
                "data_offsets": st.lists(st.integers(), max_size=3),
            }
        ),
        max_size=3,
    )
)
def test_any_json_is_refused_or_read(document):
    with contextlib.suppress(BundleError):
        parse(document, data_bytes=0)


@pytest.mark.parametrize(
    ("document", "data_bytes", "message"),
    [
        ({"a": tensor()}, 7, "truncated: the header accounts for 77 bytes, the file has 76"),
        ({"a": tensor()}, 9, "longer than its tensors: the header accounts for 77 bytes, the file has 78"),
        ({"a": tensor(), "b": tensor(offsets=(4, 12))}, 12, "'b' overlaps the tensor before it: it starts at data offset 4"),
        ({"a": tensor(), "b": tensor(offsets=(0, 8))}, 8, "'b' overlaps the tensor before it"),
        ({"a": tensor(), "b": tensor(offsets=(9, 17))}, 17, "'b' leaves a hole before it: it starts at data offset 9"),
        ({"a": tensor(offsets=(1, 9))}, 9, "'a' leaves a hole before it"),
        ({"a": tensor(shape=(3,))}, 8, r"'a' is F32\[3\], that is 12 bytes \(4 each\), but its data_offsets span 8"),
        ({"a": tensor(offsets=(8, 0))}, 8, "data_offsets .8, 0.; they are its first byte and the byte after its last"),
        ({"a": tensor(offsets=(0, 8, 9))}, 8, "data_offsets"),
        ({"a": tensor(offsets=(-8, 0))}, 8, "not a list of sizes"),
        ({"a": tensor(offsets=(0, 8.0))}, 8, "not a list of sizes"),
        ({"a": tensor(shape=(True, 2))}, 8, "shape .* is not a list of sizes"),
        ({"a": tensor(shape=(2**60, 0))}, 8, "shape .* is not a list of sizes"),
        ({"a": tensor(shape=[1] * 17)}, 8, "17 axes; at most 16"),
        ({"a": tensor(dtype="F33")}, 8, "dtype 'F33'; known are BF16, BOOL"),
        ({"a": tensor(dtype=3)}, 8, "dtype 3; known are"),
        ({"a": tensor(ofsets=[1])}, 8, "the unknown key 'ofsets': did you mean 'data_offsets'"),
        ({"a": {"dtype": "F32"}}, 8, "lacks data_offsets, shape"),
        ({"a": [1]}, 8, "'a' is not a JSON object"),
        ({"": tensor()}, 8, "1 to 512 printable characters"),
        ({"a\0b": tensor()}, 8, "printable"),
        ({"__metadata__": {"a": 1}}, 0, "__metadata__ is not a map of text to text"),
        ({"__metadata__": []}, 0, "__metadata__ is not a map of text to text"),
        ([1], 0, "not a JSON object"),
        (b'{"a":1,"a":2}', 0, "gives the key 'a' twice"),
        (b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8, "gives the key 'dtype' twice"),
        (b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', 8, "holds NaN, which is not JSON"),
        (b"[" * 100_000, 0, "not JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", 0, "not JSON"),
        (b'{"a"', 0, "not JSON"),
        (b"\xff", 0, "not JSON"),
        (b"", 0, "not JSON"),
    ],
)  # fmt: skip
def test_a_wrong_header_is_refused_with_the_rule_it_breaks(document, data_bytes, message):
    with pytest.raises(BundleError, match=message) as caught:
        parse(document, data_bytes=data_bytes)
    assert caught.value.reason == "BundleInvalid"


@pytest.mark.parametrize("code", sorted(SUB_BYTE_CODES))
def test_elements_smaller_than_a_byte_are_refused(code):
    with pytest.raises(
        BundleError, match=f"dtype {code}: elements smaller than a byte are refused; store them as I8 or F8"
    ):
        parse({"a": tensor(dtype=code)}, data_bytes=8)


@pytest.fixture
def opened(tmp_path):
    """Open a file with the given bytes."""
    files = []

    def make(data: bytes, *, size: int | None = None) -> int:
        path = tmp_path / "w"
        path.write_bytes(data)
        if size is not None:
            os.truncate(path, size)
        files.append(os.open(path, os.O_RDONLY))
        return files[-1]

    yield make
    for fd in files:
        os.close(fd)


def test_files_too_short_for_a_header_are_refused(opened):
    with pytest.raises(BundleError, match="5 bytes; a safetensors file starts with the 8 bytes"):
        read_header(opened(b"short"), file="w")


def test_a_header_beyond_the_file_is_refused_with_both_sizes(opened):
    with pytest.raises(BundleError, match="truncated: the header ends at byte 108, the file at byte 18"):
        read_header(opened((100).to_bytes(8, "little") + b"0123456789"), file="w")


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_header_beyond_the_limit_is_not_read(opened, length):
    with pytest.raises(BundleError, match=f"its header claims {length} bytes; at most {MAX_HEADER_BYTES} are read"):
        read_header(opened(length.to_bytes(8, "little"), size=2**34), file="w")
