# SPDX-License-Identifier: Apache-2.0
"""Kubernetes, etcd, CoreDNS, Helm and the device plugin, built from Go modules; and the pause program, from C.

All Go programs are one module, so what they share is compiled once, and one `go build` keeps all cores busy.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from e2e.bootstrap.keys import Keys, key_of
from e2e.bootstrap.toolchain import go_compiler
from e2e.bootstrap.tools import Home, output_of, run_logged
from e2e.cluster.console import say, timed

_HERE = Path(__file__).resolve().parent
MODULE = _HERE / "go"
KUBERNETES = "v1.34.4"
_PARTS = ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet")
_EVERY_SECONDS = 20  # between two lines of progress


@dataclass(frozen=True)
class Program:
    """A program to build: its package, the name that go gives it, and its own sources in this repository."""

    name: str
    package: str
    built_as: str
    sources: Path | None = None


_PROGRAMS = (
    Program("kube", "./kube", "kube", MODULE / "kube"),
    Program("kubectl", "k8s.io/kubernetes/cmd/kubectl", "kubectl"),
    Program("etcd", "go.etcd.io/etcd/server/v3", "server"),
    Program("coredns", "./coredns", "coredns", MODULE / "coredns"),
    Program("helm", "helm.sh/helm/v3/cmd/helm", "helm"),
    Program("device-plugin", "./device-plugin", "device-plugin", MODULE / "device-plugin"),
)
NAMES = tuple(program.name for program in _PROGRAMS)


def build(home: Home, names: Collection[str] = NAMES) -> None:
    """Build what of these is missing or was built from other sources; with Kubernetes' servers also pause."""
    programs = [program for program in _PROGRAMS if program.name in names]
    if "kube" in names:
        _build_pause(home)
    _build_programs(home, programs)
    if "kube" in names:
        _link_parts(home)


def _build_programs(home: Home, programs: list[Program]) -> None:
    go = go_compiler(home, module=MODULE / "go.mod")
    version = output_of(go, "env", "GOVERSION")
    keys = Keys(home.keys)
    flags = _link_flags()
    key = {
        program.name: key_of(version, flags, MODULE / "go.mod", MODULE / "go.sum", program.sources or program.package)
        for program in programs
    }
    stale = [program for program in programs if not keys.fresh(home.bin / program.name, key[program.name])]
    if stale:
        names = ", ".join(program.name for program in stale)
        with timed(f"binaries: {names} with {version}"):
            compile_programs(home, go, stale, flags, module=MODULE)
        for program in stale:
            keys.record(home.bin / program.name, key[program.name])
    else:
        say(f"binaries: {', '.join(program.name for program in programs)} are there")


def _link_parts(home: Home) -> None:
    for part in _PARTS:
        link = home.bin / part
        if not link.is_symlink():
            link.unlink(missing_ok=True)
            link.symlink_to("kube")


def _link_flags() -> str:
    """Return flags that drop symbols and say the versions, which kubelets and clients compare."""
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    sets = [f"k8s.io/component-base/version.{name}={value}" for name, value in values.items()]
    helm = re.search(r"helm\.sh/helm/v3 (\S+)", (MODULE / "go.mod").read_text())
    sets += [f"helm.sh/helm/v3/internal/version.version={helm[1]}"] if helm else []
    return " ".join(["-s", "-w", *(f"-X {each}" for each in sets)])


def compile_programs(home: Home, go: Path, programs: list[Program], flags: str, *, module: Path) -> None:
    """Compile programs of one Go module and put them where the others are."""
    extra = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        "GOTOOLCHAIN": "local",
        # A compiler that collects no garbage until it has to needs a fifth less time.
        "GOGC": "off",
        "GOMEMLIMIT": str(_memory_share()),
    }
    packages = [program.package for program in programs]
    (home.logs / "binaries.log").unlink(missing_ok=True)
    progress = _Progress()
    with tempfile.TemporaryDirectory(dir=home.folder) as folder:
        argv = [go, "build", "-v", "-ldflags", flags, "-o", f"{folder}/", *packages]
        with progress:
            run_logged(home, "binaries", *argv, extra=extra, cwd=module, each_line=progress.line)
        for program in programs:
            # Replaced, not written over: a cluster may be running the old one.
            shutil.move(Path(folder, program.built_as), home.bin / program.name)


def _memory_share() -> int:
    """Return what one of the compilers that run at once may take, in bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory // (2 * (os.cpu_count() or 1)), 4 << 30)


class _Progress:
    """Says now and then how far go is, and in what."""

    def __init__(self) -> None:
        self.compiled = self.fetched = 0
        self.last = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def line(self, line: str) -> None:
        if line.startswith("go: downloading"):
            self.fetched += 1
        else:
            self.compiled += 1
        self.last = line.strip()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _tell(self) -> None:
        started = time.monotonic()
        while not self._ended.wait(_EVERY_SECONDS):
            # About 3,000 packages are compiled when nothing is cached.
            done = f"{self.fetched} modules fetched, {self.compiled} packages compiled"
            say(f"binaries: {time.monotonic() - started:.0f} s, {done}, now {self.last[-60:] or 'linking'}")


def _build_pause(home: Home) -> None:
    source, target = _HERE / "pause.c", home.bin / "pause"
    keys, key = Keys(home.keys), key_of(_HERE / "pause.c")
    if keys.fresh(target, key):
        return
    built = target.with_suffix(".new")
    run_logged(home, "pause", "gcc", "-Os", "-static", "-s", "-o", built, source)
    built.replace(target)
    keys.record(target, key)
    say("binaries: pause")
