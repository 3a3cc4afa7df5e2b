"""Converts and validates the values of keys. The keys themselves are in ``keys``."""

import ast
import difflib
import enum
import functools
import inspect
import itertools
import reprlib
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec

from aosp_plugin.framework.errors import ConfigError

_MAX_LENGTH = 500
_MAX_DECIMAL_BITS = 200
_MAX_COMPARED = 64


class Setting(NamedTuple):
    """The value of a key and its source, for example ``flag --verify``."""

    value: Any
    source: str


class Limit(NamedTuple):
    """Annotates a type with the description of the allowed values, and with a check that the type cannot express."""

    allowed: str
    """The allowed values, as errors name them."""
    check: Callable[[Any], object] = lambda _value: True
    """Returns a false value or raises ValueError if the value, which has the right type, is not allowed."""


class Key(NamedTuple):
    """Annotates a field of a struct, which is a key. The docstring of the field describes it."""

    example: str
    """A value in YAML, other than the default."""
    flag: bool = False
    """Whether ``serve`` has a flag for it, in addition to the variable and the file."""
    variable: bool = True
    """Whether it has an environment variable, in addition to the file: mappings do not."""
    hint: Any = None
    """The annotated type of its value; set by ``keys_of``, as is all that follows."""
    limit: Limit = Limit("")
    required: bool = False
    """Whether it has no default."""
    structs: tuple[type[msgspec.Struct], ...] = ()
    """The types of its value, or of the items of its list, that are mappings with keys of their own."""

    @property
    def allowed(self) -> str:
        """The allowed values, as errors name them."""
        return self.limit.allowed

    @property
    def is_list(self) -> bool:
        """Whether its value is a list."""
        return get_origin(get_args(self.hint)[0]) is tuple

    def setting(self, value: Any, source: str) -> Setting:
        """Convert and validate a value. Raises ConfigError, with a message that begins with ``source``."""
        return Setting(_converted(self, value, source), source)


@functools.cache
def keys_of(struct: type[msgspec.Struct]) -> dict[str, Key]:
    """Return the keys of a struct by name, in the order of its fields. Every field is annotated with its key."""
    keys = {}
    for field in msgspec.structs.fields(struct):
        key = next(part for part in field.type.__metadata__ if isinstance(part, Key))
        limits = [part for part in field.type.__metadata__ if isinstance(part, Limit)]
        keys[field.name] = key._replace(
            hint=field.type,
            limit=limits[-1] if limits else Limit(_allowed(field.type)),
            required=field.required,
            structs=tuple(_structs(field.type)),
        )
    return keys


def descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring of each field of a struct, on one line. Reads the source code."""
    module = ast.parse(inspect.getsource(inspect.getmodule(struct) or struct))
    (body,) = (node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == struct.__name__)
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(docstring.value).split())
        for field, docstring in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(docstring, ast.Expr)
    }


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
    text = name[:_MAX_COMPARED].lower().replace("-", "_") if isinstance(name, str) else ""
    return next(iter(difflib.get_close_matches(text, keys, n=1)), None)


def shown_name(name: Any) -> str:
    """Return the name of a key as text: unquoted if it is short and printable."""
    return name if isinstance(name, str) and name.isprintable() and len(name) <= _MAX_LENGTH else shown(name)


def shown(value: Any) -> str:
    """Return a value of a YAML file on one line, as YAML can have it.

    Large values are truncated: a few lines of YAML, with anchors in lists of anchors, can expand to gigabytes.
    """
    text = _Short().repr(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."


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


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs in a type."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in get_args(hint):
        yield from _structs(part)


def _converted(key: Key, value: Any, source: str) -> Any:
    if key.structs and not key.is_list:
        if value is not None and not isinstance(value, dict):
            raise rejected(source, value, key.allowed)
        return value if value is None else _struct(key, value, source)
    items = value
    if key.structs and isinstance(value, (list, tuple)):
        items = [
            _struct(key, item, f"{source}[{index}]") if isinstance(item, dict) else item
            for index, item in enumerate(value)
        ]
    try:
        # Variables and flags are text: not strict, so that "true" and "300" are converted.
        converted = msgspec.convert(_with_text_keys(items), key.hint, strict=not isinstance(value, str))
        if _is_printable(converted) and key.limit.check(converted):
            return converted
    except (msgspec.ValidationError, ValueError):
        pass  # the error below names the allowed values, whatever was wrong
    raise rejected(source, value, key.allowed)


def _struct(key: Key, values: Mapping[Any, Any], source: str) -> msgspec.Struct:
    """Convert a mapping with keys of its own; errors name them like keys of the top level."""
    require_known(values, {name for struct in key.structs for name in keys_of(struct)}, f"{source}.")
    matching = [struct for struct in key.structs if not values.keys().isdisjoint(keys_of(struct))]
    if len(matching) != 1:
        raise rejected(source, values, key.allowed)
    keys = keys_of(matching[0])
    for name, part in keys.items():
        if part.required and name not in values:
            raise ConfigError(f"{source}.{name}: required key is missing; allowed: {part.allowed}")
    return matching[0](**{name: _converted(keys[name], value, f"{source}.{name}") for name, value in values.items()})


def _with_text_keys(value: Any) -> Any:
    """Return a mapping with its integer keys as text: YAML reads the key of ``7: 0`` as an integer."""
    if not isinstance(value, dict):
        return value
    texts = {str(name) if type(name) is int else name: part for name, part in value.items()}
    return texts if len(texts) == len(value) else value


def _is_printable(value: Any) -> bool:
    """Return whether the text, or each text of a tuple or key of a mapping, can be printed and sent unchanged."""
    texts = value if isinstance(value, (tuple, dict)) else (value,)
    return all(text.isprintable() for text in texts if isinstance(text, str))


class _Short(reprlib.Repr):
    """Writes values as Python does, except for what YAML spells in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring = 3, _MAX_LENGTH
        self.maxlist = self.maxdict = 20

    def repr_int(self, x: int, _level: int) -> str:
        # Python refuses to print a number of thousands of digits in decimal.
        return hex(x) if x.bit_length() > _MAX_DECIMAL_BITS else str(x)

    def repr_instance(self, x: Any, _level: int) -> str:
        return "null" if x is None else str(x).lower() if isinstance(x, bool) else str(x)
