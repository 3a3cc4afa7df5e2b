"""The tools that read deploy/: without one, its tests are skipped. A build that fails is an error."""

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from tests.e2e.common import packages
from tests.e2e.deploy import manifests, parts
from tests.e2e.deploy.manifests import Manifest

Render = Callable[..., list[Manifest]]
Accept = Callable[[Iterable[Manifest]], list[Manifest]]
Tool = Callable[..., str]
"""Runs a program with these arguments, and returns its output. Raises AssertionError with its messages if it fails."""


@pytest.fixture(scope="session")
def helm() -> Tool:
    return partial(parts.run, parts.helm())


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
def promtool() -> Tool:
    return partial(parts.run, parts.of_prometheus("promtool"))


@pytest.fixture(scope="session")
def dashboard_checker() -> Tool:
    """Return the program that reads a dashboard with Grafana's types."""
    return partial(parts.run, parts.checker("dashboard"))


@pytest.fixture(scope="session")
def cdi_reader() -> Tool:
    """Return the program that reads CDI specs with the library of container runtimes."""
    return partial(parts.run, parts.checker("cdi"))


@pytest.fixture(scope="session")
def systemd() -> None:
    packages.install(("systemd", "iproute2"))
