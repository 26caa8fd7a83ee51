# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. On a bare Debian machine each target installs what it needs first; only the two for GPUs use
# the python3 that is there, which has JAX for CUDA.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
BOOTSTRAP := e2e/bootstrap/bootstrap
CLUSTER := e2e/cluster/cluster

.PHONY: help
help: ## this list
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

.PHONY: demo
demo: ## the whole product with real models in a real cluster (KUBECONFIG=FILE: in that cluster)
	$(BOOTSTRAP) demo
	$(PYTHON) -m e2e.demo.main

.PHONY: demo-down
demo-down: ## remove the cluster, and what the demo put into that of KUBECONFIG; what was built stays
	@if [ -x $(PYTHON) ] && [ -n "$(KUBECONFIG)" ]; then $(PYTHON) -m e2e.demo.main --down; fi
	$(CLUSTER) down --all
	$(CLUSTER) leftovers

.PHONY: test
test: setup ## every check and test; PARTS="static unit" for some
	$(PYTHON) tests/run_all.py $(PARTS)

.PHONY: coverage
coverage: venv ## which lines and branches the unit tests run
	.venv/bin/coverage erase
	.venv/bin/coverage run -m pytest -m "not apiserver and not cluster and not gpu" -n 2 --dist worksteal
	.venv/bin/coverage combine --quiet
	.venv/bin/coverage report

.PHONY: test-outage
test-outage: setup ## an API server that is away for minutes and a node that is lost, in the real cluster
	$(PYTHON) tests/run_all.py outage

# The two targets for GPUs, and the processes that they start, find the sources here.
GPU_PATH := $(CURDIR)/operator:$(CURDIR)/worker_image:$(CURDIR)/tests:$(CURDIR)

.PHONY: test-gpu
test-gpu: ## what needs an NVIDIA GPU, each file in a process of its own; GPU_MODELS=DIR names sample bundles
	set -e; for file in tests/gpu/test_*.py; do PYTHONPATH="$(GPU_PATH)" python3 -m pytest -m gpu $$file; done

.PHONY: bench-eviction bench-policy bench-churn bench-host bench-operator bench-placement bench-requests bench-cpu-loads bench-gpu
bench-eviction bench-policy bench-churn bench-host bench-placement bench-requests: venv
	$(PYTHON) -m benchmarks.$(@:bench-%=%) $(ARGS)
bench-cpu-loads: venv
	$(PYTHON) -m benchmarks.cpu_loads $(ARGS)
bench-operator: setup
	$(PYTHON) -m benchmarks.operator $(ARGS)
bench-gpu:
	PYTHONPATH="$(GPU_PATH)" python3 -m benchmarks.gpu $(ARGS)
bench-eviction: ## time to choose what to evict, and its cost against brute force (ARGS="--keep": write docs/benchmarks)
bench-policy: ## reload seconds of the eviction policy against LRU and an offline bound, on published trace shapes
bench-churn: ## 10,000 loads: failed allocations and growth, with and without contiguity admission
bench-host: ## fill rate of the host pool against the plain read rate, table and eviction at 1,000 regions
bench-operator: ## 5,000 models on 200 simulated workers with a real API server
bench-placement: ## packing against round robin, least loaded and plain LPT
bench-requests: ## what a request costs on its way through a worker on one core, over JSON, raw tensors and gRPC
bench-cpu-loads: ## p99 of requests with large inputs while a large model loads on the CPU, and the load against memcpy
bench-gpu: ## loads, compaction, churn and plan on an NVIDIA GPU, with the python3 that has JAX for CUDA

.PHONY: venv
venv:
	$(BOOTSTRAP) packages
	$(BOOTSTRAP) venv

.PHONY: setup
setup: ## packages, virtual environment, binaries and images (what is there is kept)
	$(BOOTSTRAP) all

.PHONY: generate
generate: venv ## write every generated file: stubs, CRDs, values schema, reference documents
	$(PYTHON) e2e/generate.py

.PHONY: format
format: venv ## format the sources and apply safe fixes
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

.PHONY: cluster-up cluster-down
cluster-up: setup ## only the local cluster, two nodes
	$(CLUSTER) up --nodes 2
cluster-down: ## stop the local cluster
	$(CLUSTER) down
