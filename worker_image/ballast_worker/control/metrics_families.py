# SPDX-License-Identifier: Apache-2.0
"""How metrics of one value, and of one value for each model, are declared."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def gauge(name: str, documentation: str, value: float) -> Metric:
    """One value that may fall."""
    return GaugeMetricFamily(name, documentation, value=float(value))


def counter(name: str, documentation: str, value: float) -> Metric:
    """One value that only rises; its name ends in `_total`."""
    return CounterMetricFamily(name.removesuffix("_total"), documentation, value=float(value))


def by_model(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, text: str, values: Mapping[str, float]
) -> Metric:
    """A value of each model."""
    family = kind(name.removesuffix("_total"), text, labels=["model"])
    for model, value in sorted(values.items()):
        family.add_metric([model], value)
    return family
