# SPDX-License-Identifier: Apache-2.0
"""The images of operator and worker: built from their Dockerfiles, tagged by their inputs, laid out for the nodes."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.bootstrap import installer
from e2e.bootstrap.buildah import Buildah
from e2e.bootstrap.keys import Keys, key_of
from e2e.bootstrap.static_images import write_static_image
from e2e.bootstrap.tools import REPOSITORY, Home, run_logged
from e2e.cluster.console import ClusterError, say, timed
from e2e.cluster.layout import Layout
from e2e.cluster.settings import COREDNS_IMAGE, PAUSE_IMAGE, REGISTRY

BASE_IMAGE = f"{REGISTRY}/python:3.11-slim-bookworm"
_KEPT = 2  # versions of each product
_BASE_PACKAGES = "python3,python3-pip,ca-certificates,libstdc++6"
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
_BASE_DOCKERFILE = """\
FROM scratch
ADD base.tar /
# Debian marks its Python as managed by apt, which would make `pip install` refuse.
RUN rm -f /usr/lib/python3.11/EXTERNALLY-MANAGED && ln -sf python3 /usr/bin/python
ENV LANG=C.UTF-8
CMD ["python3"]
"""


@dataclass(frozen=True)
class Product:
    """An image of this repository, and the files that go into it."""

    name: str
    dockerfile: str
    sources: tuple[str, ...]


_COMMON = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "worker_image/ballast_contract")
PRODUCTS = (
    Product("worker", "worker_image/Dockerfile", (*_COMMON, "worker_image/ballast_worker")),
    Product("operator", "operator/Dockerfile", (*_COMMON, "operator/ballast_operator")),
)


def build_static(home: Home) -> None:
    """Make the images of pause and CoreDNS."""
    layout, keys = _layout(home), Keys(home.keys)
    for ref, name in ((PAUSE_IMAGE, "pause"), (COREDNS_IMAGE, "coredns")):
        binary = home.bin / name
        if not binary.exists():
            raise ClusterError(f"{binary} is missing, which the image {ref} is made of: run bootstrap binaries first")
        key = key_of(f"{binary.stat().st_size} {binary.stat().st_mtime_ns}")
        mark = home.images / f"{name}.image"
        if not (keys.fresh(mark, key) and layout.whole(ref)):
            write_static_image(layout, ref, binary, architecture=_architecture())
            mark.touch()
            keys.record(mark, key)
            say(f"images: {ref}")


def build_base(home: Home) -> None:
    """Make the stand-in for the official Python image, from Debian packages."""
    mark, keys, buildah = home.images / "base.image", Keys(home.keys), Buildah(home)
    if keys.fresh(mark, _base_key()) and buildah.exists(BASE_IMAGE):
        return
    with timed(f"images: {BASE_IMAGE}"), tempfile.TemporaryDirectory(dir=home.folder) as folder:
        excludes = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
        argv = ["mmdebstrap", "--quiet", "--variant=essential", "--mode=root", f"--include={_BASE_PACKAGES}"]
        run_logged(home, "image-base-packages", *argv, *excludes, "bookworm", f"{folder}/base.tar")
        Path(folder, "Dockerfile").write_text(_BASE_DOCKERFILE)
        buildah.build("image-base", BASE_IMAGE, "--layers=false", context=Path(folder))
        mark.touch()
        keys.record(mark, _base_key())


def build_products(home: Home) -> dict[str, str]:
    """Build the images of operator and worker that do not exist yet; return all names and forget old versions."""
    layout, buildah = _layout(home), Buildah(home)
    built: dict[str, str] = {}
    for product in PRODUCTS:
        with _snapshot(product) as context:
            ref = f"{REGISTRY}/{product.name}:dev-{key_of(_base_key(), context)[:12]}"
            built[product.name] = ref
            if layout.whole(ref):
                say(f"images: {ref} is there")
                continue
            with timed(f"images: {ref}"):
                log = f"image-{product.name}"
                given = {"BASE_IMAGE": BASE_IMAGE} | _index(home)
                arguments = [word for pair in given.items() for word in ("--build-arg", "=".join(pair))]
                buildah.build(log, ref, "--layers", *arguments, "-f", product.dockerfile, context=context)
                buildah.lay_out(log, ref, layout)
    if removed := layout.keep(_kept(layout, built)):
        say(f"images: removed {', '.join(removed)}, since newer ones exist")
        buildah.remove(removed)
    return built


@contextmanager
def _snapshot(product: Product) -> Iterator[Path]:
    """Copy what goes into an image, so that its name stays true while somebody edits the sources."""
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder, "context")
        for name in (product.dockerfile, *product.sources):
            source, target = REPOSITORY / name, context / name
            if not source.exists():
                raise ClusterError(f"{source} is missing, which the image of the {product.name} is made of")
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)
        yield context


def _index(home: Home) -> dict[str, str]:
    """The package index of this machine, where it is not the usual one."""
    return {name: value for name, value in installer.settings(home).items() if name == "UV_DEFAULT_INDEX"}


def _kept(layout: Layout, built: dict[str, str]) -> set[str]:
    """Return the names of the images to keep: the last of each product, and all that are no product."""
    names = [image.ref for image in layout.images()]
    kept = set(names) | set(built.values())
    for product in PRODUCTS:
        versions = [ref for ref in names if ref.startswith(f"{REGISTRY}/{product.name}:")]
        versions.sort(key=lambda ref: ref == built[product.name])  # the current one counts as the newest
        kept -= set(versions[:-_KEPT])
    return kept


def _layout(home: Home) -> Layout:
    return Layout(home.images / "layout")


def _base_key() -> str:
    return key_of(_BASE_DOCKERFILE, _BASE_PACKAGES, *_LEFT_OUT)


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
