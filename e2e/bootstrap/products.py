# SPDX-License-Identifier: Apache-2.0
"""The images of operator and worker: built from their Dockerfiles, tagged by their inputs, laid out for the nodes."""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from e2e.bootstrap.keys import Keys, key_of
from e2e.bootstrap.static_images import write_static_image
from e2e.bootstrap.tools import REPOSITORY, Home, output_of, run_logged
from e2e.cluster.console import ClusterError, say, timed
from e2e.cluster.layout import Layout
from e2e.cluster.settings import COREDNS_IMAGE, PAUSE_IMAGE, REGISTRY

BASE_IMAGE = f"{REGISTRY}/python:3.11-slim-bookworm"
_KEPT = 2  # versions of each product
_HERE = Path(__file__).resolve().parent
_COMMON = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "worker_image/ballast_contract")
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
    """An image of this repository."""

    name: str
    dockerfile: str
    sources: tuple[str, ...]

    def ref(self) -> str:
        """Name that changes with everything that goes into the image."""
        paths = [REPOSITORY / path for path in (self.dockerfile, *_COMMON, *self.sources)]
        key = key_of(_base_key(), *(path for path in paths if path.exists()))
        return f"{REGISTRY}/{self.name}:dev-{key[:12]}"


PRODUCTS = (
    Product("worker", "worker_image/Dockerfile", ("worker_image/ballast_worker",)),
    Product("operator", "operator/Dockerfile", ("operator/ballast_operator",)),
)


def layout_of(home: Home) -> Layout:
    """Return the layout that nodes are served from."""
    return Layout(home.images / "layout")


def refs() -> dict[str, str]:
    """Return the names of the product's images for the sources as they are now."""
    return {product.name: product.ref() for product in PRODUCTS}


def build_static(home: Home) -> None:
    """Make the images of pause and CoreDNS."""
    layout, keys = layout_of(home), Keys(home.keys)
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
    mark, keys = home.images / "base.image", Keys(home.keys)
    if keys.fresh(mark, _base_key()) and output_of(*_buildah(home, "images", "--quiet", BASE_IMAGE)):
        return
    with timed(f"images: {BASE_IMAGE}"), tempfile.TemporaryDirectory(dir=home.folder) as folder:
        excludes = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
        argv = ["mmdebstrap", "--quiet", "--variant=essential", "--mode=root", f"--include={_BASE_PACKAGES}"]
        run_logged(home, "image-base", *argv, *excludes, "bookworm", f"{folder}/base.tar")
        Path(folder, "Dockerfile").write_text(_BASE_DOCKERFILE)
        _build(home, "image-base", BASE_IMAGE, "--layers=false", folder)
        mark.touch()
        keys.record(mark, _base_key())


def build_products(home: Home) -> dict[str, str]:
    """Build the images of operator and worker that do not exist yet; forget all but the last ones."""
    layout, wanted = layout_of(home), refs()
    for product in PRODUCTS:
        ref = wanted[product.name]  # once: the sources may change while this runs
        if layout.whole(ref):
            say(f"images: {ref} is there")
            continue
        with timed(f"images: {ref}"):
            log = f"image-{product.name}"
            (home.logs / f"{log}.log").unlink(missing_ok=True)
            base = f"BASE_IMAGE={BASE_IMAGE}"
            _build(home, log, ref, "--layers", "--build-arg", base, "-f", product.dockerfile, REPOSITORY)
            _lay_out(home, log, ref)
    _prune(home, wanted)
    return wanted


def _base_key() -> str:
    return key_of(_BASE_DOCKERFILE, _BASE_PACKAGES, *_LEFT_OUT)


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _buildah(home: Home, *argv: object) -> list[object]:
    """Return a buildah command with images of its own, apart from what else the machine builds."""
    root = home.folder / "containers"
    return ["buildah", "--root", root, "--runroot", "/run/ballast-build", "--storage-driver", "overlay", *argv]


def _build(home: Home, log: str, ref: str, *argv: object) -> None:
    """Build without a daemon and without a network of its own.

    pip inside sees the certificates that this machine trusts and its settings, and neither is left in the image.
    """
    settings = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
    mounts = [word for path in settings for word in ("--volume", f"{path}:{path}:ro")]
    where = ["--isolation", "chroot", "--network", "host"]
    run_logged(home, log, *_buildah(home, "bud", *where, *mounts, "--tag", ref, *argv), cwd=REPOSITORY)


def _lay_out(home: Home, log: str, ref: str) -> None:
    """Copy an image to the layout.

    A push to a layout compresses the layers it writes, which takes longer than all else together; it takes those that
    are there as they are. So the large ones are put there first, through a plain folder, whose layers stay tar files.
    """
    layout = layout_of(home)
    (layout.folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    shown = output_of(*_buildah(home, "inspect", "--type", "image", ref))
    if not shown:
        raise ClusterError(f"buildah does not know {ref}, which it just built; see {home.logs / log}.log")
    *below, _ = json.loads(shown)["OCIv1"]["rootfs"]["diff_ids"]
    if not all(layout.blob(digest).exists() for digest in below):
        with tempfile.TemporaryDirectory(dir=home.images) as folder:
            run_logged(home, log, *_buildah(home, "push", "--quiet", "--disable-compression", ref, f"dir:{folder}"))
            for digest in below:
                Path(folder, digest.removeprefix("sha256:")).replace(layout.blob(digest))
    run_logged(home, log, *_buildah(home, "push", "--quiet", ref, f"oci:{layout.folder}:{ref}"))


def _prune(home: Home, wanted: dict[str, str]) -> None:
    """Keep the last versions of each product, in the layout and in buildah's own storage."""
    layout = layout_of(home)
    names = [image.ref for image in layout.images()]
    kept = {ref for ref in names if not any(ref.startswith(f"{REGISTRY}/{each.name}:") for each in PRODUCTS)}
    for product in PRODUCTS:
        mine = [ref for ref in names if ref.startswith(f"{REGISTRY}/{product.name}:")]
        kept |= set(mine[-_KEPT:]) | {wanted[product.name]}
    for ref in layout.keep(kept):
        say(f"images: {ref} removed, since newer ones exist")
        output_of(*_buildah(home, "rmi", "--force", ref))


def remove_all(home: Home) -> None:
    """Remove every image and buildah's storage."""
    if shutil.which("buildah"):
        output_of(*_buildah(home, "rmi", "--all", "--force"))
    shutil.rmtree(home.images, ignore_errors=True)
