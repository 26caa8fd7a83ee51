# SPDX-License-Identifier: Apache-2.0
"""Requests: queues, batching, execution, Open Inference Protocol over HTTP and gRPC."""
