# SPDX-License-Identifier: Apache-2.0
"""The process: kopf handlers, metrics and health server, main."""
