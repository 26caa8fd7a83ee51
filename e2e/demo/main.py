# SPDX-License-Identifier: Apache-2.0
"""Show the whole product at work with real models in a real cluster.

Without KUBECONFIG a cluster of two nodes is brought up on this machine (and left running: `make demo-down` removes it).
With KUBECONFIG that cluster is used; BALLAST_WORKER_IMAGE and BALLAST_OPERATOR_IMAGE then name images it can pull, and
a volume that holds the sample bundles must be bound to the claim `models` in the namespace ballast-demo.

Examples:
    make demo
    make demo KUBECONFIG=~/.kube/config
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping

from ballast_contract.command_line import Parser
from e2e.cluster.console import ClusterError
from e2e.demo import calling, installing, looking
from e2e.demo.kube import Kube, StepError, foreign_environment, is_local, local_environment

STARTED = time.monotonic()


def title(text: str) -> None:
    """Begin a step."""
    print(
        f"\n\033[1m[{time.monotonic() - STARTED:5.0f} s] {text}\033[0m"
        if sys.stdout.isatty()
        else f"\n[{time.monotonic() - STARTED:5.0f} s] {text}",
        flush=True,
    )


def say(text: str) -> None:
    """One line of progress."""
    print(f"          {text}", flush=True)


def mebibytes(value: float) -> str:
    """Bytes for a person."""
    return f"{value / 2**20:.0f} MiB"


def main() -> int:
    """Run the demo; 0 when every step came about."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--down", action="store_true", help="remove what the demo put into the cluster of KUBECONFIG")
    down = parser.parse_args().down
    try:
        local = is_local(os.environ.get("KUBECONFIG"))
        if down:
            if not local:
                installing.remove(Kube(foreign_environment()))
            return 0
        show(local=local)
    except (StepError, ClusterError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    return 0


def show_memory(workers: Mapping[str, Mapping[str, float]]) -> None:
    """One line for each worker's device memory."""
    for worker, figures in workers.items():
        say(
            f"{worker}: free {mebibytes(figures['free'])}, largest block {mebibytes(figures['largest'])}, fragmentation "
            f"{figures['fragmentation']:.0%}, loads {figures['loads']:.0f}, evictions {figures['evictions']:.0f}"
        )


def show(*, local: bool) -> None:
    """Every step, from nothing to the summary."""
    environment = {} if local else foreign_environment()
    refs = installing.images(local=local)
    title("Sample models: bundles made from real weights")
    installing.build_models(say)
    if local:
        title("Cluster: Kubernetes on two nodes")
        installing.start_cluster(say)
    kube = Kube(local_environment() if local else environment)
    title("Install: the chart, with Helm")
    installing.install(kube, refs)
    installing.prepare_namespace(kube, refs, local=local)
    title("Apply: a WeightBudget and its InferenceModels")
    installing.apply_samples(kube)
    seconds = looking.wait_ready(kube, say)
    say(f"all Ready after {seconds:.0f} s")

    title("Ask: sentence similarity, through the model's own Service")
    similarities = calling.similarities(kube)
    for left, right, value in similarities:
        say(f"{value:5.2f}  {left} | {right}")

    title("Load: more weights than fit, so models come and go")
    show_memory(calling.fragment(kube, say))

    title("Repack: models are assigned to workers by what they need")
    repack = looking.command(kube, "repack", "lastRepack")
    say(f"{repack['modelsPlaced']} models placed, {repack['modelsMoved']} moved")
    looking.wait_ready(kube, lambda _: None)
    before = calling.fragment(kube, say)
    show_memory(before)

    title("Compact: the free device memory becomes one block again")
    compaction = looking.command(kube, "compact", "lastCompaction")
    after = looking.fragmentation(kube)
    show_memory(after)

    title("Summary, from the live system")
    print(looking.table(kube))
    print()
    left, right, value = max(similarities, key=lambda s: s[2])
    print(f"Most alike: '{left}' and '{right}' ({value:.2f})")
    print(f"Repack: {repack.get('modelsPlaced', '?')} models placed, {repack.get('modelsMoved', '?')} moved")
    for worker in sorted(before.keys() & after.keys()):
        print(
            f"{worker}: largest free block {mebibytes(before[worker]['largest'])} -> {mebibytes(after[worker]['largest'])}, "
            f"fragmentation {before[worker]['fragmentation']:.0%} -> {after[worker]['fragmentation']:.0%}"
        )
    print(
        f"Compaction: fragmentation of the worst worker {compaction['fragmentationPercentBefore']}% -> "
        f"{compaction['fragmentationPercentAfter']}%, {mebibytes(looking.size(compaction['moved']))} moved within the devices, "
        f"{compaction['reloadedModels']} models reloaded"
    )
    if local:
        print('\nLook around:  eval "$(e2e/cluster/cluster env)"; kubectl get inferencemodels -n ballast-demo -o wide')
        print("Remove it:    make demo-down")


if __name__ == "__main__":
    sys.exit(main())
