"""What a key of the configuration is, and which ones a struct has.

The keys themselves are in ``resource`` and ``process``.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class Key(NamedTuple):
    """What people read of a key, and what is asked of its value beyond the type."""

    help: str
    allowed: str
    check: Callable[[Any], object] = lambda _value: True
    """Returns something false, or raises ValueError, where the value is not allowed."""
    flag: bool = True
    """Whether ``serve`` has a flag for it, beside the variable and the file."""
    variable: bool = True
    """Whether it has an environment variable, beside the file; what has a structure of its own has none."""
    hint: Any = None
    """The type of its value, as annotated; ``keys_of`` fills it in."""

    @property
    def structs(self) -> tuple[type[msgspec.Struct], ...]:
        """The structs that its value may be, where it is a mapping with keys of its own."""
        plain = get_args(self.hint)[0]
        parts = get_args(plain) if get_origin(plain) in {Union, types.UnionType} else (plain,)
        return tuple(part for part in parts if isinstance(part, type) and issubclass(part, msgspec.Struct))


@functools.cache
def keys_of(struct: type[msgspec.Struct]) -> dict[str, Key]:
    """Return the keys of a struct, each of whose fields is annotated with one, by name and in order."""
    return {
        name: next(part for part in hint.__metadata__ if isinstance(part, Key))._replace(hint=hint)
        for name, hint in get_type_hints(struct, include_extras=True).items()
    }
