# SPDX-License-Identifier: Apache-2.0
"""The worker: one process on one device that serves many models."""
