# SPDX-License-Identifier: Apache-2.0
"""The two kinds of the API as pydantic models: the one source of the CRDs."""
