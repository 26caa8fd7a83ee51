# SPDX-License-Identifier: Apache-2.0
"""From two objects to a model that answers."""

from __future__ import annotations

import pytest
from helpers.operator_rig import BUDGETS, MODELS, PODS, SERVICES, Rig

pytestmark = pytest.mark.apiserver


async def test_a_budget_and_a_model_become_pods_services_endpoints_and_status(pool: Rig):
    await pool.budget(replicas=2)
    await pool.model("minilm", residency="device", modelName="all-MiniLM-L6-v2")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    await pool.until_condition(BUDGETS, "default", "Ready", "True")
    print(await pool.get(MODELS, "minilm"))
    print(await pool.get(BUDGETS, "default"))
