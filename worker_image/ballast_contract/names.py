# SPDX-License-Identifier: Apache-2.0
"""Names that both sides of the control channel, the chart and the documentation must spell alike."""

from __future__ import annotations

from typing import Final

API_GROUP: Final = "ballast.dev"
API_VERSION: Final = "v1alpha1"

HTTP_PORT: Final = 8000
GRPC_PORT: Final = 8001
METRICS_PORT: Final = 8002
CONTROL_PORT: Final = 8003
INTROSPECTION_PORT: Final = 8004

WORKER_CERTIFICATE: Final = "ballast-workers-tls"
"""Secret of a namespace with the keys ca.crt, tls.crt and tls.key of its workers."""
OPERATOR_CERTIFICATE: Final = "ballast-operator-tls"
"""Secret of the operator's namespace with the authority that signs the certificates of operator and workers."""
TLS_WORKER_NAME: Final = "worker.ballast.dev"
"""DNS name in every worker's certificate: the server name that the operator expects, whatever the pod's address."""
TLS_OPERATOR_NAME: Final = "operator.ballast.dev"
"""DNS name in the operator's certificate: the only client that workers accept."""

OIP_SERVICE: Final = "inference.GRPCInferenceService"

EPOCH_METADATA: Final = "ballast-epoch"
"""Trailing metadata of a refused control call: the highest epoch the worker has seen."""

REASON_METADATA: Final = "ballast-reason"
"""Trailing metadata of a control call that a worker cannot do as asked: why, from the closed list."""

FORWARDED_HEADER: Final = "ballast-forwarded"
"""Header (HTTP) and metadata (gRPC) of a call passed on by a worker: it is not passed on again."""

LABEL_BUDGET: Final = "ballast.dev/budget"
LABEL_MODEL: Final = "ballast.dev/model"
ANNOTATION_TEMPLATE_HASH: Final = "ballast.dev/template-hash"
ANNOTATION_PAUSED: Final = "ballast.dev/paused"
ANNOTATION_REPACK: Final = "ballast.dev/repack"
ANNOTATION_COMPACT: Final = "ballast.dev/compact"
ANNOTATION_UPDATE: Final = "ballast.dev/update"
FINALIZER: Final = "ballast.dev/finalizer"

ENV_PREFIX: Final = "BALLAST_"
"""Prefix of the worker's environment variables: the path of a configuration key in upper snake case."""
