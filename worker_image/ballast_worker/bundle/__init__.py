# SPDX-License-Identifier: Apache-2.0
"""Read, write and check bundles: a model as a directory of a manifest, an exported function and its weights.

Nothing here imports JAX at module level except `function` and `writer`, so that the serving process can open a bundle,
plan its bytes and read its weights without JAX ever tracing anything.
"""
