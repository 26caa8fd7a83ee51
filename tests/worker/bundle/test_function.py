# SPDX-License-Identifier: Apache-2.0
"""Checking exported functions: bundles that lie about them, and functions that may not be served."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

from ballast_worker.bundle import function as module
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.function import CALLING_CONVENTIONS, check_function, read_function
from ballast_worker.bundle.module import check_module, look_inside
from ballast_worker.bundle.reader import open_bundle


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def exported_bytes(
    function=None, *, x_dtype=jnp.float32, width=40, kernel=(40, 30), platforms=("cpu", "cuda"), swap=False, **options
) -> bytearray:
    """The function of the small bundle, or one like it, as an artefact."""

    def small(bias, weights, x, mask):
        hidden = jnp.tanh(x.astype(jnp.float32) @ weights + bias.astype(jnp.float32))
        return hidden, (hidden * mask[..., None]).sum(1)

    batch, sequence = export.symbolic_shape("batch, sequence")
    arguments = [
        struct(kernel[1], dtype=jnp.bfloat16),
        struct(*kernel),
        struct(batch, sequence, width, dtype=x_dtype),
        struct(batch, sequence, dtype=jnp.int32),
    ]
    if swap:
        arguments = [arguments[index] for index in (1, 0, 2, 3)]
        original = function or small
        return exported_bytes_of(lambda w, b, x, m: original(b, w, x, m), arguments, platforms)
    return exported_bytes_of(function or small, arguments, platforms, **options)


def exported_bytes_of(function, arguments, platforms, **options) -> bytearray:
    return export.export(jax.jit(function, keep_unused=True), platforms=platforms, **options)(*arguments).serialize()


def test_a_packed_function_is_what_its_manifest_says(packed):
    assert open_bundle(packed, check_function=True)


def test_checking_a_function_starts_no_backend(packed, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a backend was asked for")

    monkeypatch.setattr(jax, "devices", refuse)
    monkeypatch.setattr(jax.extend.backend, "get_backend", refuse)
    check_function(open_bundle(packed))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": (40, 31)}, r"argument 0 is bfloat16\[31\], but the weights file has bfloat16\[30\] as tensor 'first.bias'"),
        ({"swap": True}, r"argument 0 is float32\[40, 30\], but the weights file has bfloat16\[30\]"),
        ({"x_dtype": jnp.bfloat16}, r"input 'x' is bfloat16\[batch, sequence, 40\], the manifest's inputs say float32"),
        ({"platforms": ("cpu",)}, "exported for cpu, the manifest's function.platforms says cpu, cuda"),
        ({"function": lambda b, w, x, _: (x @ w + b.sum(),)}, "returns 1 arrays, the manifest's outputs are 2"),
        (
            {"function": lambda b, w, x, _: ((x @ w + b.sum()).sum(1), x @ w)},
            r"output 'hidden' is float32\[batch, 30\], the manifest's outputs say float32\[batch, sequence, 30\]",
        ),
        (
            {"function": lambda _b, w, x, _: ((x @ w).astype(jnp.int32), (x @ w).sum(1))},
            r"output 'hidden' is int32\[batch, sequence, 30\]",
        ),
    ],
)  # fmt: skip
def test_a_function_that_does_not_fit_the_bundle_is_refused(bundle_path, edit, options, message):
    edit(refresh_function=exported_bytes(**options))
    with pytest.raises(BundleError, match=message) as caught:
        open_bundle(bundle_path, check_function=True)
    assert caught.value.reason == "BundleInvalid"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["inputs"].reverse(), "input 'mask' is float32"),
        (lambda m: m["inputs"].pop(), "takes 4 arrays; the bundle has 2 weights and 1 inputs, together 3"),
        (
            lambda m: m["inputs"][0].update(shape=["batch", "sequence", 41]),
            r"input 'x' is float32\[batch, sequence, 40\]",
        ),
        (lambda m: m["outputs"][0].update(shape=["batch", "sequence", 31]), "output 'hidden' is float32"),
        (lambda m: m["outputs"][0].update(shape=["batch", "sequence + 1", 30]), "output 'hidden' is float32"),
        (lambda m: m["outputs"][0].update(shape=["batch", 8, 30]), "output 'hidden' is float32"),
        (lambda m: m["outputs"][1].update(dtype="bfloat16"), "output 'pooled' is float32"),
        (lambda m: m["outputs"].pop(), "returns 2 arrays, the manifest's outputs are 1"),
        (lambda m: m["function"].update(platforms=["cuda"]), "exported for cpu, cuda, the manifest's"),
        (lambda m: m["weights"]["tensors"].reverse(), "argument 0 is bfloat16"),
    ],
)
def test_a_manifest_that_lies_about_shapes_is_refused(bundle_path, edit, change, message):
    edit(change)
    with pytest.raises(BundleError, match=message) as caught:
        open_bundle(bundle_path, check_function=True)
    assert caught.value.reason == "BundleInvalid"


def test_the_same_output_shape_may_be_spelled_differently(bundle_path, edit):
    edit(lambda m: m["outputs"][0].update(shape=["batch", "2*sequence - sequence", 30]))
    open_bundle(bundle_path, check_function=True)


@pytest.mark.parametrize("version", [CALLING_CONVENTIONS[0] - 1, CALLING_CONVENTIONS[1] + 1])
def test_a_calling_convention_outside_the_window_is_refused_with_the_window(bundle_path, edit, version):
    edit(lambda m: m["function"].update(callingConvention=version))
    window = "calling convention {} is outside the window {} to {} that jax {} supports"
    with pytest.raises(BundleError, match=window.format(version, *CALLING_CONVENTIONS, jax.__version__)):
        open_bundle(bundle_path, check_function=True)


def test_a_function_whose_own_convention_is_outside_the_window_is_refused(packed, monkeypatch):
    bundle = open_bundle(packed)
    version = bundle.manifest.function.calling_convention
    monkeypatch.setattr(module, "CALLING_CONVENTIONS", (version + 1, version + 2))
    with pytest.raises(BundleError, match=f"calling convention {version} is outside the window {version + 1}"):
        check_function(bundle)


def test_a_manifest_that_lies_about_the_convention_is_refused(bundle_path, edit):
    edit(lambda m: m["function"].update(callingConvention=CALLING_CONVENTIONS[0]))
    with pytest.raises(BundleError, match=r"the manifest's function.callingConvention says 9"):
        open_bundle(bundle_path, check_function=True)


def test_captured_arrays_over_the_limit_are_refused_with_the_remedy(bundle_path, edit):
    table = jnp.arange(600 * 500, dtype=jnp.float32).reshape(600, 500)

    def captures(bias, weights, x, mask):
        hidden = x @ weights + bias.astype(jnp.float32) + table[0, :30]
        return hidden * table.sum(), hidden.sum(1) * mask.sum()

    edit(refresh_function=exported_bytes(captures))
    with pytest.raises(
        BundleError,
        match=r"holds 12000\d\d bytes of constants, the limit is 1048576.*tensor<600x500xf32>.*`parameters`",
    ):
        open_bundle(bundle_path, check_function=True)


def test_small_constants_and_large_splats_are_no_weights(bundle_path, edit):
    def captures(bias, weights, x, mask):
        hidden = x @ weights + bias.astype(jnp.float32) + jnp.arange(30.0) + jnp.ones((2000, 30)).sum(0)
        return hidden, hidden.sum(1) * mask.sum()

    edit(refresh_function=exported_bytes(captures))
    assert open_bundle(bundle_path, check_function=True)


def test_foreign_custom_calls_are_refused(bundle_path, edit):
    def calls(bias, weights, x, mask):
        hidden = x @ weights + bias.astype(jnp.float32) * mask.sum()
        call = jax.ffi.ffi_call("xla_ffi_python_cpu_callback", jax.ShapeDtypeStruct(hidden.shape, hidden.dtype))
        return call(hidden), hidden.sum(1)

    arguments = [struct(30, dtype=jnp.bfloat16), struct(40, 30), struct(1, 8, 40), struct(1, 8, dtype=jnp.int32)]
    checks = [export.DisabledSafetyCheck.custom_call("xla_ffi_python_cpu_callback")]
    artefact = exported_bytes_of(calls, arguments, ("cpu",), disabled_checks=checks)

    def static(document):
        document.update(dimensions=[], programs=[{}])
        document.pop("batchDimension")
        document["function"]["platforms"] = ["cpu"]
        for port in (*document["inputs"], *document["outputs"]):
            port["shape"] = [{"batch": 1, "sequence": 8}.get(axis, axis) for axis in port["shape"]]

    edit(static, refresh_function=artefact)
    with pytest.raises(
        BundleError,
        match=r"makes the custom call 'xla_ffi_python_cpu_callback', which is not one that JAX keeps stable",
    ):
        open_bundle(bundle_path, check_function=True)


def test_functions_of_trees_are_refused(bundle_path, edit):
    batch, sequence = export.symbolic_shape("batch, sequence")
    artefact = export.export(jax.jit(lambda p, x, m: (x @ p["w"] + p["b"].sum(), m)), platforms=("cpu", "cuda"))(
        {"b": struct(30, dtype=jnp.bfloat16), "w": struct(40, 30)}, struct(batch, sequence, 40), struct(batch, sequence)
    ).serialize()
    edit(refresh_function=artefact)
    with pytest.raises(BundleError, match="does not take a flat list of arrays"):
        open_bundle(bundle_path, check_function=True)


@settings(max_examples=40)
@given(st.data())
def test_damaged_artefacts_are_refused_or_read_but_never_crash(packed, data):
    artefact = bytearray((packed / "function.stablehlo").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        artefact[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    try:
        exported = read_function(bytes(artefact), where="f")
    except BundleError as error:
        caught = error
        assert caught.reason == "BundleInvalid"
        return
    assert exported.in_avals is not None


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 64, b"ML\xefR" + b"\0" * 100])
def test_bytes_that_are_no_artefact_are_refused_with_the_release(data):
    with pytest.raises(BundleError, match=rf"not an artefact of jax.export that jax {jax.__version__} reads"):
        read_function(data, where="f")


def test_damaged_stablehlo_is_refused(packed):
    exported = read_function((packed / "function.stablehlo").read_bytes(), where="f")
    module_bytes = exported.mlir_module_serialized
    for length in (10, 100, len(module_bytes) // 2):
        object.__setattr__(exported, "mlir_module_serialized", module_bytes[:length])
        with pytest.raises(BundleError, match="its StableHLO cannot be read"):
            look_inside(exported, where="f")


def test_an_empty_module_is_refused(packed):
    exported = read_function((packed / "function.stablehlo").read_bytes(), where="f")
    object.__setattr__(exported, "mlir_module_serialized", b"")
    with pytest.raises(BundleError, match="its StableHLO holds no function"):
        look_inside(exported, where="f")


def test_a_function_of_a_newer_release_is_refused_with_the_remedy(bundle_path, edit):
    edit(lambda m: m["function"].update(jaxVersion="99.0.1"), refresh_function=b"something newer")
    with pytest.raises(BundleError, match=r"exported by jax 99.0.1, which is newer; export it with the oldest JAX"):
        open_bundle(bundle_path, check_function=True)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: jax.lax.top_k(x, 3)[0],
        jnp.sort,
        lambda x: jnp.abs(jnp.fft.rfft(x)),
        lambda x: jnp.linalg.qr(x.reshape(-1, 8, 8))[0],
        lambda x: jnp.linalg.svd(x.reshape(-1, 8, 8))[1],
        lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
        lambda x: jax.nn.dot_product_attention(*[x.reshape(-1, 4, 4, 4)] * 3),
        lambda x: jax.lax.scan(lambda carry, row: (carry + row, carry), x[:, 0], x.T)[1],
    ],
)
def test_ordinary_mathematics_is_accepted_for_both_platforms(operation):
    exported = export.export(jax.jit(operation), platforms=("cpu", "cuda"))(struct(4, 64))
    check_module(exported, where="f")
