# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes cluster on one machine, without a container engine or an image registry."""
