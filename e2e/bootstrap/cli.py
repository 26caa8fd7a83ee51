# SPDX-License-Identifier: Apache-2.0
"""Command line of the bootstrap."""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from e2e.bootstrap import binaries, packages, products, venv
from e2e.bootstrap.tools import Home
from e2e.cluster.console import ClusterError, say, timed
from e2e.cluster.settings import Settings

_ABOUT = """\
Brings a bare Debian machine to where the local cluster and the tests run, from package registries alone (Debian's, PyPI,
Go modules). What is there and up to date is not made again. Results go to ~/.cache/ballast, or BALLAST_CLUSTER_HOME.
"""
_EXAMPLES = """\
examples:
  bootstrap                   everything: several minutes the first time, a second after that
  bootstrap demo              what `make demo` needs: everything, or little in the cluster that KUBECONFIG names
  bootstrap venv              only .venv, for the tests that need no cluster
  bootstrap images            the images of operator and worker for the sources as they are
  bootstrap images --print    also their names, as JSON: {"worker": ..., "operator": ...}
"""
_ROOM = 12 << 30  # bytes
_CLIENTS = ("kubectl", "helm")


def main(argv: list[str] | None = None) -> int:
    """Run one part; return its exit status."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bootstrap", description=_ABOUT, epilog=_EXAMPLES, formatter_class=raw)
    commands = parser.add_subparsers(dest="part", metavar="PART")
    commands.add_parser("all", help="all of the following (default)")
    commands.add_parser(
        "demo", help="all; for the cluster of KUBECONFIG no more than .venv, kubectl and Helm, and what they need"
    )
    commands.add_parser("packages", help="Debian packages (needs root when one is missing)")
    commands.add_parser("venv", help="the virtual environment .venv")
    commands.add_parser("binaries", help="Kubernetes, etcd, CoreDNS, Helm, device plugin, pause")
    images = commands.add_parser("images", help="images of pause, CoreDNS, worker and operator")
    images.add_argument("--print", action="store_true", dest="show", help="print the names of worker and operator")
    options = parser.parse_args(argv)
    try:
        home = Home.default()
        with (home.folder / "lock").open("w") as lock:
            _lock(lock.fileno())
            built = _make(home, options.part or "all")
        if getattr(options, "show", False):
            print(json.dumps(built))
    except ClusterError as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"bootstrap: {error}{_hint(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bootstrap: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _hint(error: OSError) -> str:
    return "; free some space and run it again, it goes on from here" if error.errno == errno.ENOSPC else ""


def _make(home: Home, part: str) -> dict[str, str]:
    """Make one part; return the images of the products, by name, where they belong to it."""
    match part:
        case "packages":
            packages.install(home)
        case "demo" if not Settings.from_environment().is_at(os.environ.get("KUBECONFIG")):
            with timed("bootstrap"):
                _make_clients(home)
        case "venv":
            venv.make(home)
        case "binaries":
            binaries.build(home)
        case "images":
            products.build_static(home)
            products.build_base(home)
            return products.build_products(home)
        case _:
            with timed("bootstrap"):
                _make_all(home)
    return {}


def _make_all(home: Home) -> None:
    """Do everything at once that does not wait for something else: downloads beside the long compilation."""
    free = shutil.disk_usage(home.folder).free
    if free < _ROOM and not (home.bin / "kube").exists():
        need = f"{_ROOM >> 30} GiB, most of it the Go compiler's cache"
        raise ClusterError(f"{home.folder} has {free >> 30} GiB free, and the first run needs {need}")
    packages.install(home)
    _at_once(
        {
            "binaries": lambda: binaries.build(home),
            "venv": lambda: venv.make(home),
            "images": lambda: _product_images(home),
        }
    )
    products.build_static(home)


def _make_clients(home: Home) -> None:
    """Make what the demo needs in a cluster that is there: of kubectl and Helm only what the machine has not."""
    Settings.check_kubeconfig(os.environ["KUBECONFIG"])
    packages.install(home, packages.OF_CLIENTS)
    jobs = {"venv": lambda: venv.make(home)}
    if lacking := [name for name in _CLIENTS if not _has(name, besides=home)]:
        jobs["binaries"] = lambda: binaries.build(home, lacking)
    _at_once(jobs)


def _has(program: str, *, besides: Home) -> bool:
    """Whether the machine has a program besides the one that is built here, which may be an old one."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = [folder for folder in folders if Path(folder).resolve() != besides.bin.resolve()]
    return shutil.which(program, path=os.pathsep.join(others)) is not None


def _at_once(jobs: dict[str, Callable[[], None]]) -> None:
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(job) for name, job in jobs.items()}
        failures = [f"{name}: {error}" for name, job in running.items() if (error := _outcome(job))]
    if failures:
        raise ClusterError("could not make " + "\nand ".join(failures))


def _product_images(home: Home) -> None:
    products.build_base(home)
    products.build_products(home)


def _outcome(job: Future[None]) -> str:
    error = job.exception()
    if error is None:
        return ""
    if isinstance(error, ClusterError):
        return str(error)
    raise error


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waits for another bootstrap to end")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
