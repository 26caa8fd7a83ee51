# SPDX-License-Identifier: Apache-2.0
"""Zero-copy views of foreign memory, by jaxlib's private way and by the public one behind it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import jax
import jaxlib._jax as jaxlib_private
import numpy as np
import pytest

from ballast_worker.bundle.layout import DTYPES, TensorSpec, numpy_dtype, pack
from ballast_worker.device.cpu import CpuBackend
from ballast_worker.device.views import UnsupportedJaxlibError, Viewer, ViewError, check_support


@pytest.fixture
def backend():
    backend = CpuBackend()
    backend.allocate(1 << 16)
    return backend


@pytest.fixture(params=["private", "public"])
def viewer(request, monkeypatch):
    if request.param == "public":
        private = jaxlib_private.dlpack_managed_tensor_to_buffer

        def changed(capsule, device, stream, copy, *rest):
            return private(capsule, device, stream, copy, *rest)

        monkeypatch.setattr(jaxlib_private, "dlpack_managed_tensor_to_buffer", changed)
    return Viewer(jax.local_devices(backend="cpu")[0])


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_view_has_type_shape_and_bytes_of_the_memory_in_place(viewer, backend, dtype) -> None:
    spec = TensorSpec("w", dtype, (3, 5))
    content = np.arange(spec.nbytes, dtype=np.uint8) % (2 if dtype == "bool" else 50)
    backend.upload().send(256, memoryview(content), locked=False)
    array = viewer.view(backend.address + 256, spec)
    assert array.unsafe_buffer_pointer() == backend.address + 256
    assert array.dtype == numpy_dtype(dtype)
    assert np.asarray(array).tobytes() == content.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 4)])
def test_scalars_empty_tensors_and_axes_of_one_are_seen_in_place(viewer, backend, shape) -> None:
    array = viewer.view(backend.address, TensorSpec("w", "float32", shape))
    assert array.shape == shape
    assert array.unsafe_buffer_pointer() == backend.address


def test_a_view_sees_what_is_written_later(viewer, backend) -> None:
    array = viewer.view(backend.address, TensorSpec("w", "float32", (4,)))
    backend.upload().send(0, memoryview(np.full(4, 7, np.float32)).cast("B"), locked=False)
    assert float(jax.numpy.sum(array)) == 28


def test_views_of_a_layout_lie_where_the_layout_says(viewer, backend) -> None:
    layout = pack([TensorSpec("a", "int8", (300,)), TensorSpec("b", "float64", (2,)), TensorSpec("c", "bool", ())])
    views = viewer.views(backend.address, layout.tensors)
    assert [view.unsafe_buffer_pointer() - backend.address for view in views] == [0, 512, 768]


def test_types_below_one_byte_are_refused_by_name(backend) -> None:
    viewer = Viewer(jax.local_devices(backend="cpu")[0])
    with pytest.raises(ViewError, match=r"'w' has dtype int4.*supported are bfloat16"):
        viewer.view(backend.address, SimpleNamespace(name="w", dtype="int4", shape=(4,)))


def test_a_view_that_jax_copied_is_refused(backend) -> None:
    viewer = Viewer(jax.local_devices(backend="cpu")[0])
    with pytest.raises(ViewError, match="'w': JAX made float32"):
        viewer.view(backend.address + 4, TensorSpec("w", "float32", (4,)))


def test_memory_of_other_platforms_is_refused() -> None:
    with pytest.raises(ViewError, match=r"'tpu'.*cpu and cuda"):
        Viewer(SimpleNamespace(platform="tpu", local_hardware_id=0))


def test_the_self_check_passes_on_this_jaxlib(viewer, backend) -> None:
    check_support(viewer, backend.address)


def test_the_self_check_names_the_range_when_jaxlib_cannot_alias(backend, monkeypatch) -> None:
    def broken(*_, **__):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(jaxlib_private, "dlpack_managed_tensor_to_buffer", broken)
    with pytest.raises(UnsupportedJaxlibError, match=r"jaxlib [0-9.]+ cannot alias.*no such thing.*>=0.10,<0.12"):
        check_support(Viewer(jax.local_devices(backend="cpu")[0]), backend.address)


def test_a_process_with_live_views_ends_cleanly() -> None:
    program = """
import jax
from ballast_worker.bundle.layout import TensorSpec
from ballast_worker.device.cpu import CpuBackend
from ballast_worker.device.views import Viewer
backend = CpuBackend()
backend.allocate(1 << 16)
viewer = Viewer(backend.device)
views = [viewer.view(backend.address, TensorSpec("w", "float32", (8,))) for _ in range(1000)]
print(jax.numpy.isfinite(views[0]).shape)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "(8,)\n", "")
