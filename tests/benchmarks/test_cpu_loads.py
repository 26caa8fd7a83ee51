# SPDX-License-Identifier: Apache-2.0
"""The benchmark of loads on the CPU measures what it says; `test_gpu_benchmark` runs its part."""

from __future__ import annotations

import argparse

from benchmarks import cpu_loads
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.setting import KIB, SCALES


def test_it_is_the_part_with_traffic_on_the_cpu_at_its_own_scale(monkeypatch):
    monkeypatch.setattr(gpu, "measure", vars)
    asked = cpu_loads.measure(argparse.Namespace(keep=False))
    assert asked == {"keep": False, "backend": "cpu", "scale": "cpu", "parts": ["traffic"]}


def test_the_scale_has_inputs_of_600_kib_and_a_model_of_100_mb_in_more_than_a_hundred_tensors():
    scale = SCALES["cpu"]
    assert 4 * scale.columns * scale.input_rows == 600 * KIB
    assert scale.big.nbytes == 100_000_000
    assert 9 * scale.big.layers > 100
    assert scale.requests_per_second == 500
