"""The chapters: each is a plugin with one configuration, and the tests that share it and its pods, in their order.

Its name is in the IDs of its tests, such as ``test_pods.py::test_registers[phones]``.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

import pytest

from tests.e2e.kubelet import (
    test_cdi,
    test_daemonset,
    test_devices,
    test_image,
    test_phones,
    test_pods,
    test_renamed,
    test_restarts,
    test_scenarios,
    test_scenarios_dra,
    test_trace,
    test_users,
    test_variants,
    versions,
)
from tests.e2e.kubelet.node import ALL
from tests.e2e.kubelet.phones import CONFIGURATION, PHONE, PHONES
from tests.e2e.kubelet.plugins import PROGRAM, WITH_TMPFS, configuration
from tests.e2e.kubelet.pods import RESOURCE
from tests.e2e.kubelet.runtimes import DEBIAN, WITH_CDI, Combination
from tests.e2e.kubelet.versions import Condition

Test = Callable[..., Any]
Tests = Sequence[Test]


@dataclass(frozen=True)
class Chapter:
    """Tests that share a plugin and its configuration."""

    name: str
    tests: Tests
    configuration: str
    core: Tests = ()
    """Those of its tests that belong to the core set."""
    resource: str = PHONE
    """The resource that pods request by default."""
    devices: AbstractSet[str] = frozenset(PHONES)
    """The resource's devices that are healthy while all binder devices exist."""
    each: int = 1
    """The number of devices that each of the two shared pods requests."""
    as_pod: bool = False
    """Whether the plugin runs as the DaemonSet's pod, instead of a process."""
    program: Sequence[str] = PROGRAM
    """The words that run the plugin as a process."""
    containerd: str = DEBIAN
    requires: Condition | None = None
    """The kubelets that it is about."""

    def marks(self, test: Test) -> list[pytest.MarkDecorator]:
        """Return the markers of a test in this chapter."""
        requires = [pytest.mark.requires(self.requires)] if self.requires else []
        return [*requires, *([pytest.mark.core] if test in self.core else [])]


def _all(module: ModuleType) -> list[Test]:
    """Return the tests of a module in their order."""
    return [value for name, value in vars(module).items() if name.startswith("test_")]


_FIRST, *_REST = _all(test_pods)
_END: Final = test_devices.test_ends
_POOL: Final = (
    *(*_REST, *_all(test_restarts)),
    *(test_devices.test_device_vanishes, test_devices.test_health, test_devices.test_restart_without_device, _END),
)
_AT_PATHS: Final = (test_phones.test_three_paths, test_phones.test_second_phone)
_COMMON: Final = (
    test_phones.test_incomplete,
    *(test_pods.test_get, test_pods.test_status, test_pods.test_container_restart),
)


def _pool(name: str, tests: Tests, core: Tests = (), *, as_pod: bool = False) -> Chapter:
    return Chapter(name, tests, configuration(), core, RESOURCE, ALL, each=3, as_pod=as_pod)


def _by_cdi(name: str, tests: Tests, text: str, requires: Condition | None = None) -> Chapter:
    rest = (test_cdi.test_spec, test_cdi.test_recreated, test_cdi.test_away, test_cdi.test_ends)
    tests = (_FIRST, test_cdi.test_file, *tests, *rest)
    return Chapter(name, tests, text, containerd=WITH_CDI, requires=requires)


CHAPTERS: Final = (
    _pool(
        "process",
        (_FIRST, *_POOL),
        core=(
            *(_FIRST, test_pods.test_own_devices, test_pods.test_environment, test_pods.test_get),
            *(test_pods.test_status, test_pods.test_second_pod, test_pods.test_container_restart),
            *(test_restarts.test_kubelet_restarts, test_restarts.test_plugin_killed),
            *(test_devices.test_device_vanishes, test_devices.test_health, _END),
        ),
    ),
    _pool(
        "pod",
        (_FIRST, *_all(test_daemonset), *_all(test_image), *_POOL),
        core=(
            *(_FIRST, *_all(test_daemonset), test_image.test_content, test_image.test_programs),
            *(test_pods.test_own_devices, _END),
        ),
        as_pod=True,
    ),
    Chapter(
        "phones",
        (_FIRST, *_AT_PATHS, test_phones.test_two_phones, *_COMMON, _END),
        CONFIGURATION,
        core=(_FIRST, *_AT_PATHS, test_phones.test_incomplete, _END),
    ),
    Chapter("resources", (test_variants.test_registered, test_variants.test_merged, _END), test_variants.RESOURCES),
    Chapter(
        "replicas",
        (_FIRST, test_variants.test_both_open, _END),
        test_variants.REPLICAS,
        devices=test_variants.REPLICATED,
    ),
    Chapter("renamed", (_FIRST, *_all(test_renamed), _END), CONFIGURATION),
    Chapter(
        "renamed-phones",
        (_FIRST, *_all(test_renamed), _END),
        test_renamed.ON_TMPFS,
        core=(_FIRST, test_renamed.test_restarted_kubelet, _END),
        devices=test_renamed.MOUNTED,
        program=WITH_TMPFS,
    ),
    Chapter(
        "numa", (_FIRST, test_variants.test_topology, test_variants.test_near_each_other, _END), test_variants.NUMA
    ),
    Chapter("no-cdi", (_FIRST, test_cdi.test_without_devices, _END), test_cdi.BY_FIELD),
    _pool(
        "scenarios",
        (*_all(test_scenarios), *_all(test_trace), *_all(test_scenarios_dra)),
        core=(
            *(test_scenarios.test_order, test_scenarios.test_refusals, test_scenarios.test_flips),
            *(test_scenarios.test_allocate, test_scenarios.test_pre_start, test_scenarios.test_kubelet_restarts),
            *(test_scenarios.test_ended_plugin, test_scenarios.test_forgotten_options),
            *(test_scenarios.test_readmission, test_scenarios.test_stream_ends),
        ),
    ),
    _by_cdi("cdi", (test_cdi.test_by_field, *_AT_PATHS, *_COMMON), test_cdi.BY_FIELD, versions.CDI.required),
    Chapter(
        "kubelet-without-cdi",
        (_FIRST, test_cdi.test_without_devices, _END),
        test_cdi.BY_FIELD,
        containerd=WITH_CDI,
        requires=versions.WITHOUT_CDI,
    ),
    _by_cdi("cdi-annotations", (test_cdi.test_by_annotation, *_AT_PATHS), test_cdi.BY_ANNOTATION),
)
_USERS_REFUSED: Final = Chapter("users-refused", (_FIRST, test_users.test_no_user_namespaces, _END), CONFIGURATION)
_USERS: Final = (
    Chapter("users", (_FIRST, test_users.test_own_users, _END), CONFIGURATION),
    Chapter("users-mounts", (test_users.test_host_users, test_users.test_not_created, _END), test_users.ON_RAMFS),
    Chapter("users-cdi", (test_users.test_by_name, _END), test_users.ON_RAMFS_BY_CDI),
)
_MISSING_DEVICES: Final = _pool("missing-devices", (_FIRST, test_devices.test_started_without_device, _END))
_NOT_OF_CRI_O: Final = (test_devices.test_restart_without_device, test_cdi.test_by_field, test_cdi.test_by_annotation)
"""Tests that require a runtime that waits for devices, or that keeps the kubelet's request."""
ALL_TESTS: Final = {
    test for chapter in (*CHAPTERS, _MISSING_DEVICES, _USERS_REFUSED, *_USERS) for test in chapter.tests
}


def of(combination: Combination | None) -> tuple[Chapter, ...]:
    """Return the chapters of a combination of runtimes, by default those of the two containerds."""
    if combination is None:
        return CHAPTERS
    names = {"process", "pod", "phones", *(("cdi", "cdi-annotations") if combination.cdi else ("no-cdi",))}
    found = [chapter for chapter in CHAPTERS if chapter.name in names]
    if not combination.waits_for_devices:
        found = [replace(each, tests=[test for test in each.tests if test not in _NOT_OF_CRI_O]) for each in found]
        found.append(_MISSING_DEVICES)
    return (*found, *(_USERS if combination.user_namespaces else (_USERS_REFUSED,)))
