# SPDX-License-Identifier: Apache-2.0
"""The operator: reconciles InferenceModel and WeightBudget into GPU worker pods and what they serve."""
