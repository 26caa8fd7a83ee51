# SPDX-License-Identifier: Apache-2.0
"""The path of a request through a real worker, on one core: `python -m benchmarks.requests`."""
