# SPDX-License-Identifier: Apache-2.0
"""What the demo asks its models: sentences, a tone, and enough of both that memory falls into pieces."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from e2e.demo import client, installing, looking
from e2e.demo.kube import Kube, StepError
from e2e.samples.models.wordpiece import WordPiece

SENTENCES = (
    "The cat sleeps on the sofa.",
    "A cat is napping on the couch.",
    "Interest rates rose again.",
)


def infer_url(service: str, model: str, *, namespace: str = looking.NAMESPACE) -> str:
    """URL of a model by the name of a Service, from inside the cluster."""
    return f"http://{service}.{namespace}:8000/v2/models/{quote(model, safe='')}/infer"


def embedding_request(sentences: Sequence[str]) -> dict[str, Any]:
    """An Open Inference Protocol request for sentence embeddings, tokenised for the MiniLM models."""
    ids, mask = WordPiece.from_file(installing.MODELS / "minilm.vocab.txt").encode_batch(sentences)
    shape = [len(ids), len(ids[0])]
    return {
        "inputs": [
            {"name": "input_ids", "datatype": "INT32", "shape": shape, "data": ids},
            {"name": "attention_mask", "datatype": "INT32", "shape": shape, "data": mask},
        ]
    }


def pitch_request(hertz: float) -> dict[str, Any]:
    """A request for the pitch of one frame of a sine tone at 16 kHz, normalised as CREPE wants it."""
    wave = [math.sin(2 * math.pi * hertz * n / 16000) for n in range(1024)]
    deviation = math.sqrt(sum(x * x for x in wave) / len(wave))
    frame = [x / deviation for x in wave]
    return {"inputs": [{"name": "frames", "datatype": "FP32", "shape": [1, 1024], "data": frame}]}


def outputs(answer: Mapping[str, Any]) -> list[float]:
    """The first output's numbers.

    Raises:
        StepError: the answer is an error.
    """
    if answer["status"] != 200:
        raise StepError(f"a call was answered {answer['status']}: {answer['text'][:500]}")
    data: list[float] = json.loads(answer["text"])["outputs"][0]["data"]
    return data


def similarities(kube: Kube, *, namespace: str = looking.NAMESPACE) -> list[tuple[str, str, float]]:
    """Cosine similarity of each pair of the sample sentences, computed by MiniLM through its own Service."""
    url = infer_url("minilm", "all-MiniLM-L6-v2", namespace=namespace)
    flat = outputs(client.call(kube, namespace, [(url, embedding_request(SENTENCES))])[0])
    size = len(flat) // len(SENTENCES)
    vectors = [flat[n * size : (n + 1) * size] for n in range(len(SENTENCES))]
    return [
        (SENTENCES[a], SENTENCES[b], sum(x * y for x, y in zip(vectors[a], vectors[b], strict=True)))
        for a in range(len(SENTENCES))
        for b in range(a + 1, len(SENTENCES))
    ]


def request_for(model: Mapping[str, Any]) -> dict[str, Any]:
    """A request that fits a sample model."""
    return pitch_request(440.0) if model["metadata"]["name"].startswith("crepe") else embedding_request(SENTENCES[:1])


def call_all(kube: Kube, order: Sequence[str], *, namespace: str = looking.NAMESPACE) -> list[dict[str, Any]]:
    """Call the named models in this order, each through its own Service."""
    known = {m["metadata"]["name"]: m for m in looking.models(kube, namespace=namespace)}
    calls = [
        (infer_url(name, known[name]["spec"].get("modelName", name), namespace=namespace), request_for(known[name]))
        for name in order
    ]
    return client.call(kube, namespace, calls)


def churn(names: Sequence[str], *, seed: int = 0) -> Iterator[Sequence[str]]:
    """What to call, a few at a time: some models often and others seldom, and every now and then the other way round.

    The popular ones keep their places on the device, and what comes and goes between them leaves holes.
    """
    rng = random.Random(seed)  # noqa: S311 - a repeatable order, no secret
    for _ in range(12):
        order = rng.sample(names, len(names))
        weights = [1 / (1 + rank) for rank in range(len(order))]
        for _ in range(8):
            yield rng.choices(order, weights, k=3)


def fragment(
    kube: Kube, say: looking.Say, *, namespace: str = looking.NAMESPACE, above: float = 0.2
) -> dict[str, dict[str, float]]:
    """Call models that are not pinned until a worker's free device memory is in pieces; returns every worker's figures.

    Raises:
        StepError: a call failed, or it did not come about in the bounded number of calls.
    """
    names = [
        m["metadata"]["name"]
        for m in looking.models(kube, namespace=namespace)
        if m["spec"].get("residency", "unpinned") != "device"
    ]
    found: dict[str, dict[str, float]] = {}
    for order in churn(names):
        for name, answer in zip(order, call_all(kube, order, namespace=namespace), strict=True):
            outputs(answer)
            say(f"{name} answered in {answer['seconds'] * 1000:.0f} ms")
        found = looking.fragmentation(kube, namespace=namespace)
        if max(worker["fragmentation"] for worker in found.values()) > above:
            return found
    raise StepError(f"the free device memory stayed in one piece: {found}")
