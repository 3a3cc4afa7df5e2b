"""The parts of a profile of the plugin's start and memory."""

from __future__ import annotations

from tests.bench.profile import Import, imports, memory, module_table, package, thread_table

LOG = """import time: self [us] | cumulative | imported package
import time:      1500 |       1500 |   aosp_plugin.framework.api
import time:      2500 |       4000 | aosp_plugin.framework.worker
2026-01-01 INFO starting
import time:       300 |        300 |     zlib
"""


def test_imports_are_read_from_the_log_in_their_order() -> None:
    assert imports(LOG) == [
        Import("aosp_plugin.framework.api", 1500),
        Import("aosp_plugin.framework.worker", 2500),
        Import("zlib", 300),
    ]


def test_modules_count_for_their_package() -> None:
    names = ["aosp_plugin.framework.events.inotify", "aosp_plugin", "google.protobuf.message", "zlib"]
    assert [package(name) for name in names] == ["aosp_plugin.framework", "aosp_plugin", "google", "zlib"]


def test_the_table_sums_times_and_sizes_of_packages() -> None:
    sizes = {"aosp_plugin.framework.api": 1_000_000, "aosp_plugin.framework.worker": 24_000, "zlib": 4_096}
    lines = module_table(imports(LOG), sizes).splitlines()
    assert lines[2:] == [
        "| all | 3 | 4.3 | 1,028 |",
        "| aosp_plugin.framework | 2 | 4.0 | 1,024 |",
        "| zlib | 1 | 0.3 | 4 |",
    ]


def test_memory_is_measured_in_a_new_process_for_each_module_that_can_be_imported() -> None:
    sizes = memory(["no_such_module", "aosp_plugin.errors", "aiohttp"])
    assert sorted(sizes) == ["aiohttp", "aosp_plugin.errors"]
    assert sizes["aiohttp"] > 1_000_000


def test_threads_are_ordered_by_their_cpu_time() -> None:
    assert thread_table({"a 1": 0.01, "b 2": 0.02}, 1000).splitlines()[2:] == [
        "| b 2 | 20.0 |",
        "| a 1 | 10.0 |",
        "| all | 30.0 |",
    ]
