# SPDX-License-Identifier: Apache-2.0
"""What the operator and its workers share: protocols, names, quantities, reasons and the worker's configuration."""

__version__ = "0.1.0"
