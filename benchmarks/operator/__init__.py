# SPDX-License-Identifier: Apache-2.0
"""The real operator at scale: a real API server, pods that are given nodes and addresses, simulated workers on loopback."""
