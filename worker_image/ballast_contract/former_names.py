# SPDX-License-Identifier: Apache-2.0
"""Names of ReactantServer that people still type, and where to set the same here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ENV_PREFIX: Final = "INFERENCE_SERVER_"
"""Prefix of its worker's environment variables: the path of a setting in upper case."""

ALL_NAMES: Final = "docs/reference/old-names.md"

_WORKER: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "model_dirs": "modelDirectory (one directory)",
        "models_include": "models (name and uri of each)",
        "cache_dir": "executableStore",
        "model_control_mode": "managed (true under an operator)",
    },
    "runtime": {
        "backend": "backend",
        "device_ordinal": "device.ordinal",
        "mem_fraction": "device.budget (bytes, or a percentage of the card)",
        "device_memory_fraction": "device.budget (bytes, or a percentage of the card)",
        "weight_cache_fraction": "device.weights.maxPercent",
        "device_weight_fraction": "device.weights.maxPercent",
        "weight_cache_wiggle_fraction": "device.weights.slackPercent",
        "device_headroom_fraction": "device.weights.slackPercent",
        "host_weight_budget": "host.budget",
        "host_weight_budget_workers": "host.workers",
        "shared_host_weights": "host.sharing (node | none)",
        "shared_host_weights_mode": "host.fileMode",
        "autotune_cache_dir": "executableStore",
    },
    "scheduler": {
        "compaction_interval": "compactionInterval",
        "max_queue_depth": "serving.maxQueue",
        "models": "models (residency and batching of each)",
    },
    "endpoints": {
        "host": "serving.host",
        "port": "serving.grpcPort",
        "metrics_port": "serving.metricsPort",
    },
    "grpc": {"max_recv_msg_bytes": "serving.maxRequestBytes"},
}
"""Settings of its worker by section, with the key here; what is not listed has no counterpart."""

_GATEWAY: Final[Mapping[str, str]] = {
    "mode": "spec.placement.mode of the WeightBudget",
    "rebalance_compute_seconds": "spec.placement.repack.everyComputeSeconds",
    "first_rebalance_compute_seconds": "spec.placement.repack.firstAfterComputeSeconds",
    "hysteresis": "spec.placement.hysteresisPercent",
    "default_replicas": "spec.replicas of each InferenceModel",
    "models": "spec.replicas of each InferenceModel",
    "compaction_mode": "spec.placement.compaction.mode",
    "compaction_interval": "spec.placement.compaction.everyRepacks",
    "forbid_memory_oversubscription": "spec.device.oversubscription",
}

SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    **{name: settings for name, settings in _WORKER.items() if name},
    "scheduling": _GATEWAY,
    "global": {},
}
"""Top keys of its files that hold further settings. `global` holds sections."""

VARIABLES: Final[Mapping[str, str]] = {
    ENV_PREFIX + "_".join(filter(None, (section, name))).upper(): place
    for section, settings in _WORKER.items()
    for name, place in settings.items()
}
"""Environment variables of its worker, with the key here."""

RENAMED: Final[Mapping[str, str]] = {
    **_WORKER[""],
    **{name: place for name, place in _WORKER["runtime"].items() if name != "backend"},
    "pin_to_gpu": "residency: device",
    "lpt_packing": "placement.mode: packed",
    "eager": "lazy",
    "scheduled": "preload",
    "on_demand": "disabled",
    "off": "disabled",
}
"""Names and words that mean the same wherever they are typed."""


def places(section: str, settings: Mapping[Any, Any]) -> list[str]:
    """Where the settings of a section went, in a few words for each."""
    found: list[str] = []
    for name, value in settings.items():
        if section == "global" and name in SECTIONS and isinstance(value, dict):
            found += places(name, value)
        else:
            place = SECTIONS[section].get(name)
            found.append(f"'{name}' is {place}" if place else f"'{name}' has none")
    return found
