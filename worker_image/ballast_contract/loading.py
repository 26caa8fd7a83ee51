# SPDX-License-Identifier: Apache-2.0
"""Reading the worker's configuration: a file in YAML, and the environment over it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_origin

import pydantic

from ballast_contract import former_names, names, strict_yaml, validation
from ballast_contract.config import ConfigError, Section, WorkerConfig

_MAX_FILE_BYTES: Final = 32 << 20
"""Ten thousand models with the longest names and uris have less."""


def load(path: Path | None, environment: Mapping[str, str]) -> WorkerConfig:
    """Read a configuration file (None: defaults) and the environment over it.

    Raises:
        ConfigError: the file cannot be read, is no mapping, or has an unknown key, one twice or a bad value; the environment
            has an unknown variable with our prefix; a path begins with the home of a user who has none.
    """
    data = {} if path is None else _read(path)
    _overlay(data, environment)
    try:
        config = WorkerConfig.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError(validation.describe(error, WorkerConfig)) from error
    _check_homes(config)
    return config


def unread_variables(environment: Mapping[str, str]) -> list[str]:
    """One sentence for each variable of ReactantServer that is set: nothing here reads it."""
    ours = {".".join(path): variable for variable, (path, _) in _variables(WorkerConfig, ()).items()}
    found = []
    for variable in sorted(v for v in environment if v.startswith(former_names.ENV_PREFIX)):
        key, _, note = former_names.VARIABLES.get(variable, "").partition(" ")
        instead = f"set {ours[key]} {note}".rstrip() if key else f"see {former_names.ALL_NAMES}"
        found.append(f"environment variable '{variable}' is not read: {instead}")
    return found


def _check_homes(config: WorkerConfig) -> None:
    for key, place in (
        ("executableStore", config.executable_store),
        ("stateDirectory", config.state_directory),
        ("modelDirectory", config.model_directory),
    ):
        try:
            _ = None if place is None else place.expanduser()
        except RuntimeError as error:
            raise ConfigError(f"'{key}': '{place}' begins with a home that is not known here: write it out") from error


def _read(path: Path) -> dict[str, Any]:
    where = f"configuration file '{path}'"
    try:
        data = strict_yaml.parse(path.read_bytes(), file=where, limit=_MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        words = str(error) if isinstance(error, strict_yaml.StrictYamlError) else f"{where} cannot be read: {error}"
        raise ConfigError(words) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{where} must be a mapping of keys, not {type(data).__name__}")
    return data


def _overlay(data: dict[str, Any], environment: Mapping[str, str]) -> None:
    known = _variables(WorkerConfig, ())
    for variable in sorted(v for v in environment if v.startswith(names.ENV_PREFIX)):
        if variable not in known:
            hint = validation.nearest(variable, known)
            raise ConfigError(
                f"unknown environment variable '{variable}'" + (f": did you mean '{hint}'?" if hint else "")
            )
        (*parents, key), json_text = known[variable]
        if not environment[variable]:
            raise ConfigError(f"environment variable '{variable}' is empty: unset it, or give a value")
        target = data
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                return  # what is wrong with the file is told first
        target[key] = _from_json(variable, environment[variable]) if json_text else environment[variable]


def _from_json(variable: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ConfigError(f"environment variable '{variable}' is nested too deep") from error
    except ValueError as error:
        raise ConfigError(f"environment variable '{variable}' is not valid JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def _variables(section: type[Section], path: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The place of each setting by its variable, and whether that holds JSON: lists and mappings do, all others are text."""
    found: dict[str, tuple[tuple[str, ...], bool]] = {}
    for name, field in section.model_fields.items():
        here = (*path, field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found |= _variables(field.annotation, here)
        else:
            snake = "_".join(re.sub(r"(?<!^)(?=[A-Z])", "_", part) for part in here)
            found[names.ENV_PREFIX + snake.upper()] = here, get_origin(field.annotation) in (tuple, dict)
    return found
