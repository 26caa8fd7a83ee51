# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: each measures the product and the limit that bounds it in the same run, and prints JSON as its last line."""
