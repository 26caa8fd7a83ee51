# SPDX-License-Identifier: Apache-2.0
"""The configuration of the workers of a WeightBudget, and where things are in their pods."""

from __future__ import annotations

from typing import Any, Final

import pydantic
import yaml

from ballast_contract import config, quantities, validation
from ballast_operator.api.weightbudget import WeightBudgetSpec

CONFIG_DIRECTORY: Final = "/etc/ballast"

CONFIG_FILE: Final = "worker.yaml"

STORES_DIRECTORY: Final = "/models"

EXECUTABLES_DIRECTORY: Final = "/var/lib/ballast/executables"

STATE_DIRECTORY: Final = "/var/lib/ballast/state"

HOST_DIRECTORY: Final = "/dev/shm/ballast"  # noqa: S108 - the host pool lives in shared memory by design

TLS_DIRECTORY: Final = "/etc/ballast-tls"

TEMPORARY_DIRECTORY: Final = "/tmp"  # noqa: S108 - an emptyDir of the pod's own


def worker_config(spec: WeightBudgetSpec) -> config.WorkerConfig:
    """The configuration of every worker of a budget, checked by the worker's own model.

    Raises:
        ConfigError: it is not valid.
    """
    device, host = spec.device, spec.host
    data: dict[str, Any] = {
        "backend": spec.workers.backend.value,
        "managed": True,
        "logLevel": spec.workers.log_level.value,
        "stores": {claim: f"{STORES_DIRECTORY}/{claim}" for claim in claims(spec)},
        "executableStore": EXECUTABLES_DIRECTORY,
        "stateDirectory": STATE_DIRECTORY,
        "device": {
            "budget": size_of(device.budget),
            "reserve": size_of(device.reserve),
            "weights": {
                "maxPercent": device.weights.max_percent,
                "slackPercent": device.weights.slack_percent,
            },
            "scratch": size_of(device.scratch),
            "oversubscription": device.oversubscription.value,
            "allocator": device.allocator,
        },
        "host": {
            "budget": size_of(host.budget),
            "sharing": host.sharing.value,
            "fileMode": host.file_mode,
            "directory": HOST_DIRECTORY,
        },
        "control": {"tlsDirectory": TLS_DIRECTORY},
        "serving": {"graceSeconds": spec.workers.termination_grace_period_seconds},
    }
    try:
        return config.WorkerConfig.model_validate(data)
    except pydantic.ValidationError as error:
        raise config.ConfigError(validation.describe(error, config.WorkerConfig)) from error


def render_config(worker: config.WorkerConfig) -> str:
    """The configuration file: only what differs from the worker's defaults, in a stable order."""
    return str(yaml.safe_dump(worker.model_dump(mode="json", by_alias=True, exclude_defaults=True), sort_keys=True))


def claims(spec: WeightBudgetSpec) -> list[str]:
    """The claims of the model stores."""
    return [store.persistent_volume_claim.claim_name for store in spec.model_stores]


def size_of(text: str | None) -> int | str | None:
    """A size of the API in bytes; percentages and words as they are."""
    if text is None or text.endswith("%") or text in ("auto", "unlimited"):
        return text
    return quantities.parse_api(text)
