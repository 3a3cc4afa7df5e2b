"""One value of one key: made into the key's type, checked, and kept with where it was set.

The words for a value that is not allowed, and for a key that there isn't, are here; who sets what is in ``sources``.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from aosp_plugin.config.keys import keys_of
from aosp_plugin.config.values import is_printable
from aosp_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aosp_plugin.config.keys import Key

_LONGEST_SHOWN = 500
_DECIMAL_BITS = 200


class Setting(NamedTuple):
    """The value of one key and where it was set."""

    value: Any
    source: str


def setting(key: Key, value: Any, source: str) -> Setting:
    """Return the value as the key has it. Raises ConfigError, in a line that begins with ``source``."""
    return Setting(_value(key, value, source), source)


def refused(source: str, value: Any, allowed: str) -> ConfigError:
    """Return the error of a value that is not allowed."""
    return ConfigError(f"{source}: {shown(value)} is not allowed; allowed: {allowed}")


def require_known(names: Iterable[Any], keys: Collection[str], place: str) -> None:
    """Raise ConfigError where one of the names is no key. ``place`` is what stands before it in the error."""
    for name in names:
        if name not in keys:
            raise ConfigError(f"{place}{shown_name(name)}: there is no such key; the keys are {listed(keys)}")


def listed(names: Iterable[str]) -> str:
    """Return the names in alphabetical order with commas between them."""
    return ", ".join(sorted(names))


def shown(value: Any) -> str:
    """Return what a value of a file looks like in Python, in one line; what is large is cut.

    A few lines of YAML can hold more than memory does, with anchors in lists of anchors.
    """
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def shown_name(name: Any) -> str:
    """Return the name of a key of a file, as it is where it can be printed."""
    return name if isinstance(name, str) and name.isprintable() and len(name) <= _LONGEST_SHOWN else shown(name)


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 20
        self.maxstring = self.maxother = _LONGEST_SHOWN

    def repr_int(self, number: int, _level: int) -> str:
        """Python refuses to write a number of thousands of digits in decimal, and YAML can read it in hexadecimal."""
        return repr(number) if number.bit_length() <= _DECIMAL_BITS else hex(number)


_SHORT = _Short()


def _value(key: Key, value: Any, source: str) -> Any:
    if key.structs and isinstance(value, dict):
        return _struct(key, value, source)
    if key.structs:
        if value is None:
            return None
        raise refused(source, value, key.allowed)
    try:
        # Variables and flags bring text: not strict, so that "true" and "300" are what they say.
        converted = msgspec.convert(_with_text_keys(value), key.hint, strict=not isinstance(value, str))
        if is_printable(converted) and key.check(converted):
            return converted
    except (msgspec.ValidationError, ValueError):
        pass  # said below, in the same words for everything that is not allowed
    raise refused(source, value, key.allowed)


def _with_text_keys(value: Any) -> Any:
    """YAML reads ``7: 0`` as a number with a number; keys are text here."""
    if not isinstance(value, dict):
        return value
    texts = {shown(name) if type(name) is int else name: part for name, part in value.items()}
    return texts if len(texts) == len(value) else value


def _struct(key: Key, values: Mapping[Any, Any], source: str) -> msgspec.Struct:
    """Read a mapping with keys of its own: each is checked and named like one of the top level."""
    require_known(values, {name for struct in key.structs for name in keys_of(struct)}, f"{source}.")
    meant = [struct for struct in key.structs if not values.keys().isdisjoint(keys_of(struct))]
    if len(meant) != 1:
        raise refused(source, values, key.allowed)
    keys = keys_of(meant[0])
    for field in msgspec.structs.fields(meant[0]):
        if field.required and field.name not in values:
            raise ConfigError(f"{source}.{field.name}: it is missing; allowed: {keys[field.name].allowed}")
    return meant[0](**{name: _value(keys[name], value, f"{source}.{name}") for name, value in values.items()})
