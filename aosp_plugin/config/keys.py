"""Configuration keys: their description, and how a value of a flag, variable or file is converted and validated.

The keys themselves are in ``resource`` and ``process``.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from aosp_plugin.config.messages import rejected, require_known, shown
from aosp_plugin.config.values import is_printable
from aosp_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Setting(NamedTuple):
    """The value of a key and its source, for example ``flag --verify``."""

    value: Any
    source: str


class Key(NamedTuple):
    """Describes a key, and what its type does not say about allowed values."""

    help: str
    """A sentence, with the unit."""
    example: str
    """A value in YAML, other than the default."""
    allowed: str = ""
    """The allowed values, as errors name them; ``keys_of`` derives them from the type if it can."""
    check: Callable[[Any], object] = lambda _value: True
    """Returns a false value or raises ValueError if the value, which has the right type, is not allowed."""
    flag: bool = True
    """Whether ``serve`` has a flag for it, in addition to the variable and the file."""
    variable: bool = True
    """Whether it has an environment variable, in addition to the file. Mappings have none."""
    hint: Any = None
    """The annotated type of its value; set by ``keys_of``."""

    @property
    def is_list(self) -> bool:
        """Whether its value is a list."""
        return get_origin(get_args(self.hint)[0]) is tuple

    @property
    def structs(self) -> tuple[type[msgspec.Struct], ...]:
        """The types of its value, or of the items of its list, that are mappings with keys of their own."""
        plain = get_args(get_args(self.hint)[0])[0] if self.is_list else get_args(self.hint)[0]
        parts = get_args(plain) if get_origin(plain) in {Union, types.UnionType} else (plain,)
        return tuple(part for part in parts if isinstance(part, type) and issubclass(part, msgspec.Struct))

    def setting(self, value: Any, source: str) -> Setting:
        """Convert and validate a value. Raises ConfigError, with a message that begins with ``source``."""
        return Setting(_converted(self, value, source), source)


@functools.cache
def keys_of(struct: type[msgspec.Struct]) -> dict[str, Key]:
    """Return the keys of a struct by name, in the order of its fields. Every field is annotated with its key."""
    keys = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        key = next(part for part in hint.__metadata__ if isinstance(part, Key))
        keys[name] = key._replace(hint=hint, allowed=key.allowed or _allowed(hint))
    return keys


def _allowed(hint: Any) -> str:
    """Return a description of the values of a type: a choice, a range of numbers, an absolute path, or null."""
    if get_origin(hint) is Annotated:
        plain, *metadata = get_args(hint)
        for part in metadata:
            if isinstance(part, msgspec.Meta):
                return "an absolute path" if part.pattern == "^/" else f"a number from {part.ge} to {part.le}"
        return _allowed(plain)
    if get_origin(hint) in {Union, types.UnionType}:
        return f"{_allowed(get_args(hint)[0])}, or null"
    if hint is bool:
        return "true, false"
    return ", ".join(hint if isinstance(hint, enum.EnumMeta) else get_args(hint))


def _converted(key: Key, value: Any, source: str) -> Any:
    if key.structs and key.is_list:
        value = _items(key, value, source)
    elif key.structs:
        if isinstance(value, dict):
            return _struct(key, value, source)
        if value is None:
            return None
        raise rejected(source, value, key.allowed)
    try:
        # Variables and flags are text: not strict, so that "true" and "300" are converted.
        converted = msgspec.convert(_with_text_keys(value), key.hint, strict=not isinstance(value, str))
        if is_printable(converted) and key.check(converted):
            return converted
    except (msgspec.ValidationError, ValueError):
        pass  # the error below names the allowed values, whatever was wrong
    raise rejected(source, value, key.allowed)


def _with_text_keys(value: Any) -> Any:
    """Return a mapping with its integer keys as text: YAML reads the key of ``7: 0`` as an integer."""
    if not isinstance(value, dict):
        return value
    texts = {shown(name) if type(name) is int else name: part for name, part in value.items()}
    return texts if len(texts) == len(value) else value


def _items(key: Key, value: Any, source: str) -> Any:
    """Convert the items of a list that are mappings with keys of their own; everything else stays as it is."""
    if not isinstance(value, (list, tuple)):
        return value
    return [
        _struct(key, item, f"{source}[{index}]") if isinstance(item, dict) else item for index, item in enumerate(value)
    ]


def _struct(key: Key, values: Mapping[Any, Any], source: str) -> msgspec.Struct:
    """Convert a mapping with keys of its own; errors name them like keys of the top level."""
    require_known(values, {name for struct in key.structs for name in keys_of(struct)}, f"{source}.")
    matching = [struct for struct in key.structs if not values.keys().isdisjoint(keys_of(struct))]
    if len(matching) != 1:
        raise rejected(source, values, key.allowed)
    keys = keys_of(matching[0])
    for field in msgspec.structs.fields(matching[0]):
        if field.required and field.name not in values:
            raise ConfigError(f"{source}.{field.name}: required key is missing; allowed: {keys[field.name].allowed}")
    return matching[0](**{name: _converted(keys[name], value, f"{source}.{name}") for name, value in values.items()})
