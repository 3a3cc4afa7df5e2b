"""The tools that read deploy/: without one, its tests are skipped. A build that fails is an error."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from tests.e2e.common import packages
from tests.e2e.deploy import manifests, parts
from tests.e2e.deploy.manifests import Manifest

Render = Callable[..., list[Manifest]]
Accept = Callable[[Iterable[Manifest]], list[Manifest]]
Tool = Callable[..., str]
"""Runs a program with these arguments, and returns its output. Raises AssertionError with its messages if it fails."""


def _tool(find: Callable[[], str]) -> Any:
    """Return a fixture that finds a program and runs it."""

    @pytest.fixture(scope="session")
    def tool() -> Tool:
        return partial(parts.run, find())

    return tool


helm = _tool(parts.helm)
promtool = _tool(partial(parts.of_prometheus, "promtool"))
dashboard_checker = _tool(partial(parts.checker, "dashboard"))
"""Reads a dashboard with Grafana's types."""
cdi_reader = _tool(partial(parts.checker, "cdi"))
"""Reads CDI specs with the library of container runtimes."""


@pytest.fixture(scope="session")
def charted(helm: Tool) -> Render:
    """Return ``manifests.charted``, which renders the chart."""
    return partial(manifests.charted, helm)


@pytest.fixture(scope="session")
def kustomized() -> Render:
    """Return ``manifests.kustomized``, which renders a directory."""
    return partial(manifests.kustomized, parts.kustomize())


@pytest.fixture(scope="session")
def accepted() -> Accept:
    """Return ``manifests.accepted``, which validates manifests as the API server does."""
    return partial(manifests.accepted, parts.validator())


@pytest.fixture(scope="session")
def systemd() -> None:
    packages.install(("systemd", "iproute2"))
