# SPDX-License-Identifier: Apache-2.0
"""Device memory: the arena, its leases, the backends below it and the plan above it."""
