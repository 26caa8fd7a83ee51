# SPDX-License-Identifier: Apache-2.0
"""How weights are packed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.bundle.layout import ALIGNMENT, DTYPES, TensorSpec, numpy_dtype, pack

specs = st.builds(
    TensorSpec,
    name=st.text("abc.", min_size=1),
    dtype=st.sampled_from(sorted(DTYPES)),
    shape=st.lists(st.integers(0, 40), max_size=3).map(tuple),
)


@given(st.lists(specs, max_size=30))
def test_tensors_keep_their_order_are_aligned_and_never_overlap(tensors):
    layout = pack(tensors)
    assert [placed.spec for placed in layout.tensors] == tensors
    end = 0
    for placed in layout.tensors:
        assert placed.offset % ALIGNMENT == 0
        assert placed.offset >= end
        assert placed.offset - end < ALIGNMENT
        end = placed.end
    assert layout.nbytes % ALIGNMENT == 0
    assert 0 <= layout.nbytes - end < ALIGNMENT
    assert layout.largest_tensor == max((spec.nbytes for spec in tensors), default=0)


@given(st.lists(specs, max_size=10))
def test_tensors_without_elements_take_no_room(tensors):
    empty = TensorSpec("empty", "float32", (0, 7))
    assert pack([*tensors, empty]).nbytes == pack(tensors).nbytes
    assert pack([empty, *tensors]).nbytes == pack(tensors).nbytes


def test_a_model_without_weights_takes_no_bytes():
    assert pack([]).nbytes == 0
    assert pack([]).largest_tensor == 0


def test_bytes_follow_dtype_and_shape():
    assert TensorSpec("a", "bfloat16", (3, 5)).nbytes == 30
    assert TensorSpec("a", "float8_e4m3fn", (7,)).nbytes == 7
    assert TensorSpec("scalar", "float32", ()).nbytes == 4


def test_every_dtype_has_a_whole_number_of_bytes_and_its_canonical_name():
    for name in DTYPES:
        assert numpy_dtype(name).name == name
        assert np.zeros(3, numpy_dtype(name)).nbytes == 3 * numpy_dtype(name).itemsize


@pytest.mark.parametrize("dtype", ["int4", "float4_e2m1fn", "float", "object", ">f4", ""])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match="is not one of"):
        TensorSpec("a", dtype, (1,))


def test_negative_axes_are_refused():
    with pytest.raises(ValueError, match="negative axis"):
        TensorSpec("a", "int8", (-1,))
