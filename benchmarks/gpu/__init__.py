# SPDX-License-Identifier: Apache-2.0
"""The device memory of a real worker, measured on the device: `python -m benchmarks.gpu`.

`prepare` packs and builds the models. Each part then runs in a process of its own, so that it has the device alone, on the
parts that a worker is made of (`worker`), and prints its figures as JSON, one object a line.
"""
