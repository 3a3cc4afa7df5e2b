"""Any file is a configuration, or an error of one line."""

import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from aosp_plugin.config.keys import KEYS, RESOURCE_KEYS, Config
from aosp_plugin.config.sources import as_yaml, load
from aosp_plugin.framework.errors import ConfigError
from tests.unit.config.tables import EXAMPLES, INVALID, write

VALUES = {name: [example, *INVALID[name]] for name, example in EXAMPLES.items()}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 20)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["/dev", "a.io/x", "aosp_binder", "0-9", "5-20", "\ud800", "a\nb", "{set}/{name}"])
    | st.binary(max_size=3)
    | st.dates(datetime.date(1, 1, 1))
    | st.sampled_from([16**3000, -(16**3000), 2**64])
)
PARTS = st.sampled_from(
    ["size", "stride", "first", "names", "pattern", "count", "max", "directory", "path", "required"]
)
NAMES = PARTS | st.sampled_from([*KEYS, "resources", "version"]) | SCALARS
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
STRUCTURED = st.dictionaries(PARTS, st.integers(0, 70) | SCALARS | st.lists(SCALARS, max_size=2), max_size=3)


def documents(names: list[str]) -> SearchStrategy[dict[Any, Any]]:
    """Return mappings of these keys to valid and invalid values, and mappings of anything."""
    known = {name: st.sampled_from(VALUES[name]) | STRUCTURED | ANYTHING for name in names}
    near = st.fixed_dictionaries({}, optional={name: st.sampled_from(VALUES[name][:1]) for name in names})
    return near | st.fixed_dictionaries({}, optional=known) | st.dictionaries(NAMES, ANYTHING, max_size=3)


ENTRIES = st.lists(documents(list(RESOURCE_KEYS)), max_size=3)
FILES = st.builds(
    lambda top, entries, version: top | entries | version,
    documents(list(KEYS)),
    st.just({}) | st.fixed_dictionaries({"resources": ENTRIES | ANYTHING}),
    st.just({"version": "v1"}) | st.fixed_dictionaries({"version": ANYTHING}),
)


def outcome(file: Path, text: str) -> Config | None:
    """Return the configuration of the file, or None if loading it is an error of one line."""
    try:
        config, sources = load({}, {}, write(file, text))
    except ConfigError as error:
        _require_one_line(str(error))
        return None
    assert load({}, {}, write(file, as_yaml(sources)))[0] == config
    return config


def _require_one_line(message: str) -> None:
    assert message.startswith("file ")
    assert "\n" not in message
    assert len(message) < 5000


@given(FILES)
@settings(derandomize=True, deadline=None, max_examples=25)
@example({"version": "v1", "resources": [{"device_prefix": "x", "resource_name": "a.io/x"}, {}]})
def test_any_document_is_a_configuration_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, document: dict[Any, Any]
) -> None:
    """The printed configuration loads as the same configuration."""
    outcome(tmp_path_factory.getbasetemp() / "any.yaml", yaml.safe_dump(document))


@given(st.text(st.sampled_from("versionv1:resources nma -[]{}#&*!<>|%@'\"\\\n0123x.?,=~"), max_size=80))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_any_text_is_a_configuration_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    outcome(tmp_path_factory.getbasetemp() / "any.yaml", f"version: v1\n{text}")


LAUGHS = "\n".join(f"- &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12))
HOSTILE = [
    *("missing_device_ttl: !!int ''", "require_devices: !!bool perhaps", "listen: !!timestamp soon"),
    f"missing_device_ttl: 1{':1' * 200}.0",
    'listen: "\\UFFFFFFFF"',
    'listen: "\\uD800"',
    '"a\\nb": 1',
    f"? {'x' * 10_000}\n: 1",
    "resources: &a [*a]",
    "&a sets: {*a : 1}",
    f"0x{'f' * 5000}: 1",
    f"replicas: {'9' * 5000}",
    f"numa: {{0x{'f' * 5000}: 1}}",
    "device_dir: " + "x" * 100_000,
    "shared_mounts: [" + "x, " * 10_000 + "]",
    f"resources:\n- &l0 [x]\n{LAUGHS}",
    "resources: [!!binary aGVsbG8=]",
    "resources: [2024-01-01, 2024-01-01T00:00:00Z]",
    *("? [a, b]\n: c", "<<: [1]"),
]


def test_hostile_document_is_an_error(file: Path) -> None:
    """The error is short and immediate, however large the document expands."""
    for text in HOSTILE:
        assert outcome(file, f"version: v1\n{text}\n") is None
