# SPDX-License-Identifier: Apache-2.0
"""What a manifest may say, and the words for what it may not."""

from __future__ import annotations

import copy
import itertools

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.manifest import MAX_MANIFEST_BYTES, default_programs, read_manifest

DIGEST = "sha256:" + "0" * 64
WEIGHTS_DIGEST = "blake3:" + "0" * 64
VALID = {
    "format": "ballast.dev/bundle/v1",
    "name": "org/model-1.0",
    "function": {"digest": DIGEST, "bytes": 10, "platforms": ["cpu", "cuda"], "jaxVersion": "0.10.2", "callingConvention": 10},
    "weights": {"digest": WEIGHTS_DIGEST, "bytes": 20, "tensors": ["a", "b"]},
    "dimensions": ["batch", "sequence"],
    "batchDimension": "batch",
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", "sequence", 3]}],
    "outputs": [{"name": "y", "dtype": "bfloat16", "shape": ["batch", "2*sequence"]}],
    "programs": [{"batch": 1, "sequence": 8}],
}  # fmt: skip


def read(document) -> object:
    return read_manifest(yaml.safe_dump(document).encode())


def changed(path: str, value) -> dict:
    """The valid manifest with one value set; a missing list item or key is made."""
    document = copy.deepcopy(VALID)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target = document
    for part in parents:
        target = target[part]
    target[last] = value
    return document


def test_a_valid_manifest_is_read_with_defaults():
    manifest = read(VALID)
    assert manifest.function.file == "function.stablehlo"
    assert manifest.weights.file == "weights.safetensors"
    assert manifest.weights.tensors == ("a", "b")
    assert manifest.inputs[0].concrete({"batch": 2, "sequence": 5}).shape == (2, 5, 3)
    assert manifest.outputs[0].concrete({"batch": 2, "sequence": 5}).shape == (2, 10)
    assert manifest.lines == ()


def test_a_manifest_is_immutable():
    manifest = read(VALID)
    with pytest.raises(ValueError, match="frozen"):
        manifest.name = "other"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("batchDimenson", "batch", "unknown key 'batchDimenson': did you mean 'batchDimension'"),
        ("function.digst", DIGEST, "unknown key 'function.digst': did you mean 'digest'"),
        ("inputs.0.type", "float32", "unknown key 'inputs.0.type'"),
        ("format", "ballast.dev/bundle/v2", "format: must be 'ballast.dev/bundle/v1' .got 'ballast.dev/bundle/v2'"),
        ("name", "", "name: "),
        ("name", "a" * 300, "name: "),
        ("name", "../up/", "name: "),
        ("weights.digest", "md5:00", "weights.digest: "),
        ("weights.digest", WEIGHTS_DIGEST + "\n", "weights.digest: "),
        ("weights.digest", DIGEST, "weights.digest: .* blake3: and 64 hexadecimal digits.*pack the bundle again .got 'sha256:"),
        ("function.digest", WEIGHTS_DIGEST, "function.digest: "),
        ("weights.bytes", -1, "weights.bytes: must be at least 0 .got -1"),
        ("weights.bytes", "20", "weights.bytes: "),
        ("weights.bytes", 2**60, "weights.bytes: .*1125899906842624"),
        ("weights.file", "../weights", "plain name inside the bundle.*got '../weights'"),
        ("weights.file", "/etc/passwd", "plain name inside the bundle"),
        ("weights.file", "sub/weights", "plain name inside the bundle"),
        ("weights.file", "function.stablehlo", "three different files"),
        ("function.file", "manifest.yaml", "three different files"),
        ("weights.tensors", ["a", "a"], "tensor 'a' is named twice"),
        ("weights.tensors", ["a\nb"], "printable"),
        ("function.platforms", ["cpu", "rocm"], "function.platforms.1: .*'cpu' or 'cuda'"),
        ("function.platforms", [], "function.platforms: "),
        ("function.platforms", ["cpu", "cpu"], "names a platform twice"),
        ("inputs.0.dtype", "float31", "inputs.0.dtype: no such dtype: did you mean 'float[0-9]+'.*got 'float31'"),
        ("inputs.0.dtype", "int4", "inputs.0.dtype: elements smaller than a byte are refused.*got 'int4'"),
        ("inputs.0.dtype", "float4_e2m1fn", "elements smaller than a byte are refused"),
        ("inputs.0.shape", ["batch", "sequence", -1], "inputs.0.shape"),
        ("inputs.0.shape", ["batch", "sequenc"], "'dimensions' does not name sequenc"),
        ("inputs.0.shape", ["batch", "2*sequence"], "an input's axis is a size or the name of a dimension"),
        ("inputs.0.shape", ["batch", 1.5], r"inputs.0.shape.1: an axis is a size between 0 and 2147483647.*got 1.5"),
        ("inputs.0.shape", ["batch", True, "sequence"], "inputs.0.shape"),
        ("inputs.0.shape", ["batch"] + [1] * 20, "inputs.0.shape"),
        ("outputs.0.shape", ["batch", "__import__('os')"], "not an expression over dimensions"),
        ("outputs.0.shape", ["batch", "sequence - 9"], r"programs\[0\]: 'y': 'sequence - 9' is -1"),
        ("outputs.0.shape", ["batch", "floordiv(1, 0)"], r"programs\[0\]: 'y': 'floordiv\(1, 0\)' divides by zero for {'batch': 1"),
        ("outputs.0.shape", ["batch", "mod(batch, 0)"], r"programs\[0\]: 'y': 'mod\(batch, 0\)' divides by zero for {'batch': 1"),
        ("outputs", [], "outputs: must have 1 or more items"),
        ("dimensions", ["batch", "sequence", "width"], "width is in no input's shape"),
        ("dimensions", ["batch", "sequence", "batch"], "dimension 'batch' is named twice"),
        ("dimensions", ["batch", "sequence", "mod"], "no function's name"),
        ("batchDimension", "row", "batchDimension: 'row' is not one of 'dimensions'"),
        ("batchDimension", "sequence", "must be the first axis of every input and output"),
        ("programs", [{"batch": 1}], r"programs\[0\] gives values for batch; it must give one for each of batch, sequence"),
        ("programs", [{"batch": 1, "sequence": 8, "x": 1}], r"programs\[0\]"),
        ("programs", [{"batch": 0, "sequence": 8}], "programs.0.batch: must be at least 1"),
        ("programs", [], "programs: "),
        ("programs", [{"batch": 1, "sequence": 8}, {"sequence": 8, "batch": 1}], r"programs\[1\] is there twice"),
        ("lines", [{"name": "kv", "bytes": 1, "unit": 2}], "either 'bytes', or 'unit' and 'count'"),
        ("lines", [{"name": "kv"}], "either 'bytes', or 'unit' and 'count'"),
        ("lines", [{"name": "kv", "bytes": 1, "minimum": 2}], "minimum of 2, above its own size 1"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name_with_the_rule(path, value, message):
    with pytest.raises(BundleError, match=f"(?s)^manifest.yaml: .*{message}") as caught:
        read(changed(path, value))
    assert caught.value.reason == "BundleInvalid"


def test_missing_keys_are_named():
    document = copy.deepcopy(VALID)
    del document["weights"]["digest"], document["inputs"]
    with pytest.raises(BundleError, match=r"'weights.digest' is missing; 'inputs' is missing"):
        read(document)


@pytest.mark.parametrize("value", [None, True, 1.5, -1, 2**70, "", "x" * 5000, [], ["x"] * 300, [[1]], {}, {"x": [1]}])
@pytest.mark.parametrize(
    "path",
    [
        *("format", "name", "description", "function", "weights", "dimensions", "batchDimension", "inputs", "outputs"),
        *("programs", "lines", "function.bytes", "function.digest", "function.platforms", "weights.tensors"),
        *("inputs.0", "inputs.0.dtype", "inputs.0.shape", "outputs.0.shape.1", "programs.0", "programs.0.batch"),
    ],
)
def test_no_fault_is_told_in_words_of_a_library(path, value):
    told = ""
    try:
        read(changed(path, value))
    except BundleError as error:
        told = str(error)
    assert not any(word in told for word in ("should", "constrained", "instance of", "[key]", "tuple"))


def test_many_faults_are_counted_instead_of_told():
    document = changed("outputs", [{"name": "y", "dtype": "nothing", "shape": []} for _ in range(30)])
    with pytest.raises(BundleError, match="and 22 more"):
        read(document)


def test_programs_default_to_powers_of_two_of_the_only_dimension():
    document = changed("dimensions", ["batch"])
    document["inputs"][0]["shape"] = ["batch", 3]
    document["outputs"][0]["shape"] = ["batch"]
    del document["programs"]
    assert read(document).programs == tuple({"batch": size} for size in (1, 2, 4, 8, 16, 32))


def test_a_function_without_dimensions_has_one_program():
    document = copy.deepcopy(VALID)
    del document["programs"], document["dimensions"], document["batchDimension"]
    document["inputs"][0]["shape"] = [3]
    document["outputs"][0]["shape"] = []
    assert read(document).programs == ({},)


def test_programs_of_several_dimensions_have_no_default():
    document = copy.deepcopy(VALID)
    del document["programs"]
    with pytest.raises(BundleError, match="'programs' is missing"):
        read(document)


@given(st.integers(1, 300))
def test_the_largest_batch_always_has_a_program(largest):
    sizes = [program["batch"] for program in default_programs("batch", largest=largest)]
    assert sizes[0] == 1
    assert sizes[-1] == largest
    assert all(low < high <= 2 * low for low, high in itertools.pairwise(sizes))


def test_programs_are_canonical_in_the_order_of_dimensions():
    manifest = read(changed("programs", [{"sequence": 8, "batch": 1}]))
    assert list(manifest.canonical_programs()[0]) == ["batch", "sequence"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", "line 2: the key 'name' is given twice"),
        ("function: {file: a, file: b}\n", "the key 'file' is given twice"),
        ("a: &x [1]\nb: *x\n", "line 1: anchors .* and aliases .* are refused"),
        ("a: *x\n", "aliases|not YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", "the tag .* is refused"),
        ("a: !local 1\n", "the tag '!local' is refused"),
        ("[" * 500, "nested deeper than 16 levels"),
        ("{a: " * 500, "nested deeper than 16 levels"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
        ("a: [1\n", "not YAML"),
        ("a: \0\n", "not YAML"),
        ("a: 2020-01-01\n", "put it in quotes"),
        ("on: 1\n", "the key 'on' is not text; put it in quotes"),
        ("1: 1\n", "the key '1' is not text"),
        ("? [a]\n: 1\n", "is not text"),
        ("<<: {a: 1}\n", "the key '<<' is not text"),
        ("", "manifest.yaml: a manifest must be a mapping of keys to values"),
        ("just text", "manifest.yaml: a manifest must be a mapping of keys to values"),
        ("- a\n", "manifest.yaml: a manifest must be a mapping of keys to values"),
    ],
)
def test_yaml_that_two_readers_could_understand_differently_is_refused(text, message):
    with pytest.raises(BundleError, match=message) as caught:
        read_manifest(text.encode())
    assert caught.value.reason == "BundleInvalid"


def test_a_large_manifest_is_refused_before_it_is_parsed():
    with pytest.raises(BundleError, match=f"{MAX_MANIFEST_BYTES + 1} bytes; at most {MAX_MANIFEST_BYTES} are read"):
        read_manifest(b" " * (MAX_MANIFEST_BYTES + 1))


def test_bytes_that_are_not_text_are_refused():
    with pytest.raises(BundleError, match="byte 6 is not UTF-8"):
        read_manifest(b"name: \xff")


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_refused_with_a_reason(data):
    with pytest.raises(BundleError):
        read_manifest(data)
