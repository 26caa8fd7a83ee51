# SPDX-License-Identifier: Apache-2.0
"""What becomes of the driver's errors; they cannot be caused without a broken GPU, so the driver's answers are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ballast_worker.device.backend import DeviceError, DeviceLostError, DeviceUnavailableError
from ballast_worker.device.cuda import _call


def answering(name: str, value: int, *results: object):
    def cuCall(*_):  # noqa: N802 - named as the driver names its own
        return (SimpleNamespace(name=name, value=value), *results)

    return cuCall


def test_a_success_gives_its_results() -> None:
    assert _call(answering("CUDA_SUCCESS", 0)) == ()
    assert _call(answering("CUDA_SUCCESS", 0, 7)) == 7
    assert _call(answering("CUDA_SUCCESS", 0, 1, 2)) == (1, 2)


@pytest.mark.parametrize(
    "name", ["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_LAUNCH_FAILED"]
)
def test_a_sticky_error_means_that_the_device_is_lost(name: str) -> None:
    with pytest.raises(DeviceLostError, match=f"cuCall failed with {name}.*only a new process helps"):
        _call(answering(name, 700))


@pytest.mark.parametrize("name", ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_INVALID_VALUE"])
def test_any_other_error_concerns_the_one_call(name: str) -> None:
    with pytest.raises(DeviceError, match=f"cuCall failed with {name}") as error:
        _call(answering(name, 2))
    assert not isinstance(error.value, DeviceLostError)


def test_a_machine_without_the_drivers_library_is_told_so() -> None:
    def cuInit(_: int):  # noqa: N802 - named as the driver names its own
        raise RuntimeError("libcuda.so.1 was not found")

    with pytest.raises(DeviceUnavailableError, match=r"no NVIDIA driver: libcuda\.so\.1"):
        _call(cuInit, 0)
