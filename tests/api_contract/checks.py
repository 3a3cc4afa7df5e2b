"""What a client may rely on of an API server, checked with both: the stand-in and kube-apiserver.

``tests/tools/test_api_contract.py`` runs the checks with the stand-in API server, ``tests/e2e/apiserver`` with
kube-apiserver.
"""

from __future__ import annotations

from typing import Final

from tests.api_contract import collections, objects, patches, publishing, slices, traces

CHECKS: Final = (
    *objects.check.all,
    *collections.check.all,
    *slices.check.all,
    *patches.check.all,
    *publishing.check.all,
    *traces.check.all,
)
