# SPDX-License-Identifier: Apache-2.0
"""Packing bundles from JAX functions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3
from jax import export

from ballast_worker.bundle import placing, writer
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.reader import open_bundle
from ballast_worker.bundle.safetensors import CODE_OF_DTYPE, read_header
from ballast_worker.bundle.writer import pack_bundle


class Pair(NamedTuple):
    first: object
    second: object


def double(parameters, x):
    return x * parameters


def pack(path, **changes):
    arguments = {
        "name": "double",
        "function": double,
        "parameters": np.full((3,), 2, np.float32),
        "inputs": [("x", "float32", ("batch", 3))],
        "batch_dimension": "batch",
        "max_batch": 4,
    }
    return pack_bundle(path, **(arguments | changes))


def weights_of(bundle) -> list[np.ndarray]:
    buffer = np.zeros(bundle.layout.nbytes, np.uint8)
    with bundle.open_weights() as file:
        file.read_into(memoryview(buffer), layout=bundle.layout)
    return [
        buffer[placed.offset : placed.end].view(placed.spec.dtype).reshape(placed.spec.shape)
        for placed in bundle.layout.tensors
    ]


def test_a_packed_function_computes_what_the_original_does(packed, tmp_path):
    bundle = open_bundle(packed)
    exported = export.deserialize(bytearray(bundle.function_bytes()))
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 8, 40)).astype(np.float32)
    mask = random.integers(0, 2, (2, 8)).astype(np.int32)
    bias, kernel = weights_of(bundle)
    hidden, pooled = jax.jit(exported.call)(bias, kernel, x, mask)
    expected = np.tanh(x @ kernel + bias.astype(np.float32))
    np.testing.assert_allclose(hidden, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pooled, (expected * mask[..., None]).sum(1), rtol=1e-4, atol=1e-4)


def test_the_same_arguments_give_the_same_bytes_wherever_they_are_packed(packed, tmp_path):
    # In another process, directory, hash seed and source file, so that neither paths nor set orders can matter.
    source = Path(__file__).parent / "conftest.py"
    (tmp_path / "elsewhere.py").write_text("# moved\n\n" + source.read_text())
    program = (
        "from elsewhere import small_arguments; from ballast_worker.bundle.writer import pack_bundle\n"
        "pack_bundle('again', **small_arguments())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    for file in ("manifest.yaml", "function.stablehlo", "weights.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (packed / file).read_bytes()


def test_artefacts_hold_no_paths_of_the_packing_machine(packed):
    data = (packed / "function.stablehlo").read_bytes()
    assert b".py" not in data
    assert os.fsencode(Path(__file__).parent) not in data
    assert b"dot_general" in data  # names of operations stay, for profilers


def test_parameters_are_named_after_their_paths_in_the_order_of_the_tree(tmp_path):
    tree = {
        "b": [np.ones(2, np.float32), np.ones(3, np.float32)],
        "a": Pair(np.ones(4, np.float32), {"x y": np.ones(5, np.float32)}),
    }
    bundle = pack(
        tmp_path / "b",
        parameters=tree,
        function=lambda p, x: x * sum(leaf.sum() for leaf in jax.tree.leaves(p)),
    )
    assert bundle.manifest.weights.tensors == ("a.first", "a.second.x y", "b.0", "b.1")


def test_every_dtype_survives(tmp_path):
    random = np.random.default_rng(0)
    tree = {}
    for dtype in sorted(set(CODE_OF_DTYPE) - {"int64", "uint64", "float64", "complex64"}):
        tree[dtype] = random.integers(0, 2, 7).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    bundle = pack(
        tmp_path / "b",
        parameters=tree,
        function=lambda p, x: x * sum(leaf.astype(jnp.float32).sum() for leaf in p.values()),
    )
    for (name, original), read in zip(sorted(tree.items()), weights_of(bundle), strict=True):
        assert read.dtype.name == name
        assert read.tobytes() == original.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(12, dtype=">f4").reshape(4, 3),
        np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2],
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3)),
    ],
)
def test_arrays_of_any_memory_order_are_stored_row_by_row(tmp_path, array):
    bundle = pack(tmp_path / "b", parameters=array, function=lambda p, x: x * p.sum(0))
    np.testing.assert_array_equal(weights_of(bundle)[0], array)
    data = (tmp_path / "b" / "weights.safetensors").read_bytes()
    with (tmp_path / "b" / "weights.safetensors").open("rb") as file:
        start = read_header(file.fileno(), file="w").entries["parameters"].start
    assert data[start:] == np.ascontiguousarray(array).astype("<f4").tobytes()


def test_scalars_and_empty_arrays_are_weights(tmp_path):
    tree = {"empty": np.zeros((0, 3), np.float32), "scalar": np.float32(2)}
    bundle = pack(tmp_path / "b", parameters=tree, function=lambda p, x: x * p["scalar"] + p["empty"].sum())
    assert [placed.spec.shape for placed in bundle.layout.tensors] == [(0, 3), ()]
    assert weights_of(bundle)[1] == 2


def test_a_function_without_parameters_can_be_packed(tmp_path):
    bundle = pack(tmp_path / "b", parameters={}, function=lambda _, x: x + 1)
    assert bundle.layout.nbytes == 0
    assert weights_of(bundle) == []


def test_inputs_that_the_function_ignores_stay_arguments(tmp_path):
    bundle = pack(
        tmp_path / "b",
        inputs=[("x", "float32", ("batch", 3)), ("ignored", "int32", ("batch",))],
        function=lambda p, x, _: x * p,
    )
    exported = export.deserialize(bytearray(bundle.function_bytes()))
    assert exported.module_kept_var_idx == (0, 1, 2)


@pytest.mark.parametrize(
    ("result", "given", "expected"),
    [
        (lambda x: x, None, ("output",)),
        (lambda x: (x, x + 1), None, ("output_0", "output_1")),
        (lambda x: {"z": x, "a": x + 1}, None, ("a", "z")),
        (lambda x: {"z": x, "a": {"b": x + 1}}, None, ("a.b", "z")),
        (lambda x: [x, x + 1], ["left", "right"], ("left", "right")),
    ],
)
def test_outputs_are_named(tmp_path, result, given, expected):
    bundle = pack(tmp_path / "b", function=lambda p, x: result(x * p), output_names=given)
    assert tuple(port.name for port in bundle.manifest.outputs) == expected


def test_programs_are_powers_of_two_up_to_the_largest_batch(tmp_path):
    assert [program["batch"] for program in pack(tmp_path / "b", max_batch=12).manifest.programs] == [1, 2, 4, 8, 12]


def test_output_shapes_may_be_expressions(tmp_path):
    bundle = pack(
        tmp_path / "b",
        inputs=[("x", "float32", ("batch", "samples"))],
        parameters=np.ones((1, 1, 16), np.float32),
        function=lambda p, x: jax.lax.conv_general_dilated(x[:, None], p, (4,), "VALID")[:, 0],
        constraints=["samples >= 16"],
        programs=[{"batch": 1, "samples": 64}],
        max_batch=None,
    )
    program = bundle.manifest.programs[0]
    assert isinstance(bundle.manifest.outputs[0].shape[1], str)
    assert bundle.manifest.outputs[0].concrete(program).shape == (1, 13)
    assert open_bundle(bundle.path, check_function=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters": {"w": 2.0}}, "parameter 'w' is float 2.0, not an array"),
        ({"parameters": {"w": np.zeros(3)}}, "has dtype float64, and JAX works with 32 bits here; convert it"),
        ({"parameters": {"w": np.zeros(3, ml_dtypes.int4)}}, "dtype int4: elements smaller than a byte are refused"),
        ({"parameters": {"w": np.zeros(3, ml_dtypes.float4_e2m1fn)}}, "elements smaller than a byte are refused"),
        ({"parameters": {"w": np.array(["a"])}}, "has dtype str32; known are"),
        ({"parameters": {"w": jax.random.key(0)}}, "has dtype key<fry>; known are"),
        ({"parameters": {"w": np.zeros(3, np.complex128)}}, "has dtype complex128; known are"),
        ({"parameters": {"a.b": np.zeros(3, np.float32), "a": {"b": np.zeros(3, np.float32)}}}, "two parameters are named 'a.b'"),
        ({"parameters": {"a\n": np.zeros(3, np.float32)}}, "printable"),
        ({"inputs": [("x", "int4", ("batch", 3))]}, "input 'x' has dtype int4"),
        ({"inputs": [("x", "float32", ("batch", "batch size"))]}, "dimensions batch, batch size"),
        ({"batch_dimension": "row"}, "programs must give values for the dimensions batch"),
        ({"inputs": [("x", "float32", (3, "batch"))], "function": lambda p, x: p @ x}, "must be the first axis of every input"),
        ({"programs": [{"batch": 1}]}, "either programs or max_batch"),
        ({"max_batch": 0}, "the largest batch is 0"),
        ({"programs": [{"bach": 1}], "max_batch": None}, r"programs\[0\] gives values for bach; it must give one for each of batch"),
        ({"output_names": ["a", "b"]}, "2 output names for a function that returns 1 arrays"),
        ({"name": "no spaces"}, "name: "),
        ({"platforms": ("cpu", "tpu")}, "function.platforms.1"),
        ({"constraints": ["batch <"]}, "dimensions batch: "),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_and_leaves_nothing_behind(tmp_path, changes, message):
    with pytest.raises(BundleError, match=message) as caught:
        pack(tmp_path / "b", **changes)
    assert caught.value.reason == "BundleInvalid"
    assert list(tmp_path.iterdir()) == []


def test_captured_arrays_are_refused_with_the_remedy(tmp_path):
    table = jnp.arange(512 * 1024, dtype=jnp.float32)
    with pytest.raises(
        BundleError, match=r"holds 2097\d* bytes of constants, the limit is 1048576.*pass them in through `parameters`"
    ):
        pack(tmp_path / "b", function=lambda p, x: x * p + table.sum() + table[:3])
    assert list(tmp_path.iterdir()) == []


def test_weights_that_the_function_ignores_are_refused_with_their_bytes(tmp_path):
    tree = {"used": np.ones(3, np.float32), "pooler": np.ones(100, np.float32)}
    with pytest.raises(
        BundleError, match=r"1 parameters \(400 bytes\) are never used by the function .*: pooler; leave them out"
    ):
        pack(tmp_path / "b", parameters=tree, function=lambda p, x: x * p["used"])


def test_effects_are_refused(tmp_path):
    def prints(parameters, x):
        jax.debug.print("{}", x)
        return x * parameters

    with pytest.raises((BundleError, NotImplementedError, TypeError, ValueError)):
        pack(tmp_path / "b", function=prints)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_bundle_is_replaced_only_on_request(tmp_path):
    first = pack(tmp_path / "b")
    with pytest.raises(FileExistsError, match="--overwrite"):
        pack(tmp_path / "b")
    second = pack(tmp_path / "b", max_batch=8, overwrite=True)
    assert first.digest != second.digest
    assert open_bundle(tmp_path / "b").digest == second.digest
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_failed_replacement_keeps_the_old_bundle(tmp_path):
    first = pack(tmp_path / "b")
    with pytest.raises(BundleError):
        pack(tmp_path / "b", name="no spaces", overwrite=True)
    assert open_bundle(tmp_path / "b").digest == first.digest
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_missing_parents_of_a_bundle_are_made(tmp_path):
    assert pack(tmp_path / "models" / "team" / "double").manifest.name == "double"


@pytest.mark.parametrize("exchange", [True, False])
def test_replacing_works_with_and_without_exchanging_names(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(placing, "_exchange", lambda *_: False)
    pack(tmp_path / "b")
    second = pack(tmp_path / "b", max_batch=8, overwrite=True)
    assert open_bundle(tmp_path / "b").digest == second.digest
    (tmp_path / "empty").mkdir()
    pack(tmp_path / "empty", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "empty"]


def test_a_bundle_whose_manifest_cannot_be_read_any_more_is_replaced(tmp_path):
    pack(tmp_path / "b")
    (tmp_path / "b" / "manifest.yaml").write_bytes(b"")
    assert pack(tmp_path / "b", overwrite=True).manifest.name == "double"


def other_directory(path):
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    return "holds 'thesis.tex', which is no bundle's"


def bundle_with_notes(path):
    pack(path)
    (path / "thesis.tex").write_text("years of work")
    return "holds 'thesis.tex', which is no bundle's"


def bundle_with_directory(path):
    pack(path)
    (path / "weights.safetensors").unlink()
    (path / "weights.safetensors").mkdir()
    return "holds 'weights.safetensors', which is no bundle's"


def files_without_manifest(path):
    path.mkdir()
    (path / "weights.safetensors").write_text("somebody's weights")
    return "holds 'weights.safetensors', which is no bundle's"


def link(path):
    pack(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    return "is no directory"


def file(path):
    path.write_text("years of work")
    return "is no directory"


@pytest.mark.parametrize(
    "something", [other_directory, bundle_with_notes, bundle_with_directory, files_without_manifest, link, file]
)
def test_what_is_no_bundle_is_never_replaced(tmp_path, something):
    words = something(tmp_path / "b")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match=f"{words} and is left alone"):
        pack(tmp_path / "b", overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("exchange", [True, False])
def test_a_file_that_comes_while_a_bundle_is_replaced_is_kept(tmp_path, monkeypatch, exchange):
    move = writer.move_into_place

    def move_late(directory, target, **given):
        (target / "late.txt").write_text("years of work")
        return move(directory, target, **given)

    if not exchange:
        monkeypatch.setattr(placing, "_exchange", lambda *_: False)
    pack(tmp_path / "b")
    monkeypatch.setattr(writer, "move_into_place", move_late)
    with pytest.raises(FileExistsError, match="the bundle is in its place, but what it replaced stays at"):
        pack(tmp_path / "b", max_batch=8, overwrite=True)
    assert [path.read_text() for path in tmp_path.glob(".*/late.txt")] == ["years of work"]
    assert open_bundle(tmp_path / "b").manifest.programs[-1] == {"batch": 8}


def test_an_output_that_divides_by_a_size_is_packed(tmp_path):
    bundle = pack(
        tmp_path / "b",
        inputs=[("x", "float32", ("s",))],
        parameters=np.ones(1, np.float32),
        function=lambda p, x: jnp.broadcast_to(x.sum() * p.sum(), (100 // (x.shape[0] - 1),)),
        batch_dimension=None,
        max_batch=None,
        constraints=["s >= 2"],
        programs=[{"s": 2}, {"s": 11}],
    )
    assert [bundle.manifest.outputs[0].concrete(program).shape for program in bundle.manifest.programs] == [
        (100,),
        (10,),
    ]
    assert open_bundle(bundle.path, check_function=True)


def test_an_interrupted_move_puts_the_old_bundle_back(tmp_path, monkeypatch):
    monkeypatch.setattr(placing, "_exchange", lambda *_: False)
    first = pack(tmp_path / "b")
    rename = Path.rename

    def fail(self, target):
        if self.suffix == ".packing":
            raise OSError("no space left")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        pack(tmp_path / "b", max_batch=8, overwrite=True)
    assert open_bundle(tmp_path / "b").digest == first.digest
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_sixty_four_bit_types_can_be_packed_where_jax_works_with_them(tmp_path):
    with jax.enable_x64(True):
        bundle = pack(
            tmp_path / "b", parameters=np.ones(3), inputs=[("x", "int64", ("batch", 3))], function=lambda p, x: x * p
        )
    assert bundle.layout.tensors[0].spec.dtype == "float64"
    assert open_bundle(tmp_path / "b", check_function=True).manifest.outputs[0].dtype == "float64"


def test_the_digest_of_weights_is_the_documented_tree(packed):
    bundle = open_bundle(packed)
    lines = b""
    for placed, array in zip(bundle.layout.tensors, weights_of(bundle), strict=True):
        shape = ",".join(map(str, placed.spec.shape))
        content = blake3(array.tobytes()).hexdigest()
        lines += f"{placed.spec.name}\0{placed.spec.dtype}\0{shape}\0{content}\n".encode()
    assert bundle.manifest.weights.digest == "blake3:" + blake3(lines).hexdigest()
