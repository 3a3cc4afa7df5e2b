"""Error messages of the configuration: how values and names appear in them."""

from __future__ import annotations

import datetime
import itertools
import math
from typing import TYPE_CHECKING, Any

from aosp_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_MAX_LENGTH = 500
_MAX_DEPTH = 3
_MAX_ITEMS = 20
_MAX_DECIMAL_BITS = 200
_MAX_COMPARED = 64


def rejected(source: str, value: Any, allowed: str) -> ConfigError:
    """Return the error for a value that is not allowed."""
    return ConfigError(f"{source}: {shown(value)} is not allowed; allowed: {allowed}")


def require_known(names: Iterable[Any], keys: Collection[str], place: str) -> None:
    """Raise ConfigError for the first name that is not a key. ``place`` precedes the name in the error."""
    for name in names:
        if name not in keys:
            near = similar(name, keys)
            hint = f"did you mean {near}?" if near else f"the keys are {', '.join(sorted(keys))}"
            raise ConfigError(f"{place}{shown_name(name)}: unknown key; {hint}")


def similar(name: Any, keys: Iterable[str]) -> str | None:
    """Return the key that is most similar to ``name``, or None if no key is similar."""
    import difflib  # noqa: PLC0415 - only for errors

    text = str(name)[:_MAX_COMPARED] if isinstance(name, str) else ""
    return next(iter(difflib.get_close_matches(text.lower().replace("-", "_"), keys, n=1)), None)


def shown_name(name: Any) -> str:
    """Return the name of a key as text: unquoted if it is short and printable."""
    return name if isinstance(name, str) and name.isprintable() and len(name) <= _MAX_LENGTH else shown(name)


def shown(value: Any) -> str:
    """Return a value of a YAML file in flow style, on one line.

    Large values are truncated: a few lines of YAML, with anchors in lists of anchors, can expand to gigabytes.
    """
    text = _flow_style(value, _MAX_DEPTH)
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."


def _flow_style(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        pairs = (f"{_key(key, depth)}: {_flow_style(part, depth - 1)}" for key, part in value.items())
        return f"{{{_joined(pairs, len(value), depth)}}}"
    if isinstance(value, (list, tuple, set)):
        return f"[{_joined((_flow_style(part, depth - 1) for part in value), len(value), depth)}]"
    return _scalar(value)


def _joined(parts: Iterable[str], count: int, depth: int) -> str:
    if depth == 0:
        return "..."
    return ", ".join([*itertools.islice(parts, _MAX_ITEMS), *(["..."] if count > _MAX_ITEMS else [])])


def _key(key: Any, depth: int) -> str:
    return key if isinstance(key, str) and key.isidentifier() else _flow_style(key, depth - 1)


def _quoted(text: str) -> str:
    """Return a text in single quotes; if it cannot be printed as it is, in double quotes with escapes."""
    text = text[: _MAX_LENGTH + 1]
    if text.isprintable():
        return "'{}'".format(text.replace("'", "''"))
    import json  # noqa: PLC0415 - only for errors

    # JSON leaves some control characters, separators and surrogates as they are.
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, int) and value.bit_length() > _MAX_DECIMAL_BITS:
        return hex(value)  # Python refuses to print a number of thousands of digits in decimal
    if value is None or isinstance(value, (bool, int, float)):
        import json  # noqa: PLC0415 - only for errors

        return json.dumps(value)
    return str(value) if isinstance(value, datetime.date) else "!!binary ..."
