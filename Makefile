# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python

.PHONY: help
help: ## this list
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 20

.PHONY: generate
generate: ## write every generated file: stubs, CRDs, values schema, reference documents
	$(PYTHON) e2e/generate.py
