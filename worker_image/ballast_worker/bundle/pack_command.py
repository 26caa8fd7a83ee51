# SPDX-License-Identifier: Apache-2.0
"""`ballast-bundle pack`: find the factory, call it, and pack what it returns; every fault is one line that says whose it is."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ballast_worker.bundle import writer
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.faults import did_you_mean
from ballast_worker.bundle.reader import Bundle


class PackError(Exception):
    """Nothing was packed; the message is complete."""


def pack(spelled: str, settings: Mapping[str, str], out: Path, *, overwrite: bool) -> Bundle:
    """Pack what a factory returns as a bundle at `out`.

    What code that is not ours raises is printed with its traceback on standard error first.

    Args:
        spelled: `MODULE:FACTORY`, or `PATH.py:FACTORY`.
        settings: Arguments of the factory.
        out: The bundle's directory.
        overwrite: As of `pack_bundle`.

    Raises:
        PackError: It cannot be packed.
    """
    factory = _factory(spelled)
    try:
        inspect.signature(factory).bind(**settings)
    except TypeError as error:
        raise PackError(_unfit(spelled, factory, settings, error)) from error
    with _code_of(spelled):
        arguments = factory(**settings)
    _check(spelled, arguments)
    try:
        with _code_of(f"the function of {spelled}", BundleError, OSError):
            return writer.pack_bundle(out, overwrite=overwrite, **arguments)
    except BundleError as error:
        raise PackError(f"{error.reason}: {error}") from error
    except OSError as error:
        refused = error.errno is None  # in our words, before the file system was asked
        raise PackError(str(error) if refused else f"--out {out} cannot be written: {error.strerror}") from error


def _check(spelled: str, arguments: Any) -> None:
    if not isinstance(arguments, dict):
        raise PackError(f"{spelled} returned {type(arguments).__name__}, not a dict for pack_bundle")
    known = set(writer.pack_bundle.__annotations__) - {"path", "return", "overwrite"}
    for key in arguments:
        if key not in known:
            raise PackError(f"{spelled} returned the unknown key {key!r}: {did_you_mean(str(key), known)}")
    if missing := sorted({"name", "function", "parameters", "inputs"} - set(arguments)):
        raise PackError(f"{spelled} returned no {', '.join(missing)}")


def _factory(spelled: str) -> Callable[..., Any]:
    module_name, separator, name = spelled.rpartition(":")
    if not separator or not module_name or not name:
        raise PackError(f"{spelled!r} is not MODULE:FACTORY, as in my_models.encoder:bundle")
    module = _load(Path(module_name)) if module_name.endswith(".py") else _import(module_name)
    factory = getattr(module, name, None)
    if not callable(factory):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise PackError(f"{module_name} has no function {name!r}: {did_you_mean(name, functions)}")
    found: Callable[..., Any] = factory
    return found


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PackError(f"{path} does not exist")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    with _code_of(str(path)):
        spec.loader.exec_module(module)
    return module


def _import(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        with _code_of(name, ModuleNotFoundError):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise PackError(f"module {name!r} cannot be imported: {error}") from error


def _unfit(spelled: str, factory: Callable[..., Any], settings: Mapping[str, str], error: TypeError) -> str:
    known = [name for name, one in inspect.signature(factory).parameters.items() if one.kind is not one.VAR_KEYWORD]
    unknown = next((key for key in settings if key not in known), None)
    if unknown is None:
        return f"{spelled} cannot be called with these settings: {error}; give it with --set KEY=VALUE"
    what = did_you_mean(unknown, known) if known else "it takes none"
    return f"--set {unknown}: {spelled} has no such argument: {what}"


@contextlib.contextmanager
def _code_of(whose: str, *ours: type[Exception]) -> Iterator[None]:
    """Whatever is raised inside, but for what is `ours`, is of code that is not."""
    try:
        yield
    except ours:
        raise
    except Exception as error:
        traceback.print_exc()
        raise PackError(f"{whose} raised {type(error).__name__}, see above") from error
