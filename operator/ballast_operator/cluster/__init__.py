# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API: client, swept caches, work queue, Lease."""
