# SPDX-License-Identifier: Apache-2.0
"""The real operator at scale: a real API server, nodes and kubelets played by kwok, simulated workers on loopback."""
