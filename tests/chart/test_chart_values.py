# SPDX-License-Identifier: Apache-2.0
"""A value that the chart does not know is refused at any depth (kubernetes/kubernetes#111074, helm charts that drop keys)."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "ballast"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
VALIDATOR = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
FREE = {"commonLabels", "podLabels", "podAnnotations", "nodeSelector", "labels", "annotations", "requests", "limits"}


def paths(values, path=()):
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict) and key not in FREE:
            yield from paths(value, (*path, key))


PATHS = list(paths(VALUES))


def nested(path, value):
    for key in reversed(path):
        value = {key: value}
    return value


def at(path):
    value = VALUES
    for key in path:
        value = value[key]
    return value


def complaints(values):
    return [error.message for error in VALIDATOR.iter_errors(values)]


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_a_key_that_is_one_letter_off_is_refused_by_name(path):
    *parents, key = path
    for wrong in {key + "x", key[:-1], key[0].swapcase() + key[1:], key[1:]}:
        (message,) = complaints(nested([*parents, wrong], at(path)))
        assert f"'{wrong}' was unexpected" in message


@pytest.mark.parametrize("path", [path for path in PATHS if path[-1] not in FREE], ids=".".join)
def test_a_key_that_is_one_level_too_deep_is_refused(path):
    assert complaints(nested([*path, path[-1]], at(path)))


@pytest.mark.parametrize("path", [path for path in PATHS if len(path) > 1], ids=".".join)
def test_a_key_that_is_one_level_too_high_is_refused_or_is_another_key(path):
    *parents, key = path
    above = at(parents[:-1])
    assert key in above or complaints(nested([*parents[:-1], key], at(path)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["imagee.tag=1"], "additional properties 'imagee' not allowed"),
        (["monitoring.podMonitor.enabledd=true"], "at '/monitoring/podMonitor': additional properties 'enabledd'"),
        (["replicas=0"], "at '/replicas': minimum"),
        (["replicas=many"], "at '/replicas': got string, want integer"),
        (["image.digest=sha1:1"], "at '/image/digest'"),
        (["logging.level=loud"], "at '/logging/level': value must be one of"),
        (["tolerations[0].kee=x"], "additional properties 'kee' not allowed"),
        (["affinity.nodeAffinityy.x=1"], "additional properties 'nodeAffinityy' not allowed"),
    ],
)
def test_helm_prints_the_key_that_it_refuses(helm, arguments, words):
    assert words in helm.refuse(*(part for a in arguments for part in ("--set", a)))


def test_free_form_maps_take_any_key(helm):
    values = {"nodeSelector": {"a/b": "c"}, "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}, "global": {"x": 1}}
    assert helm.render(values=values)
