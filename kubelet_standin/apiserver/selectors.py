"""Field selectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kubelet_standin.apiserver import statuses

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubelet_standin.apiserver.kinds import Kind, Location

Object = dict[str, Any]


def selector(text: str, location: Location) -> Callable[[Object], bool]:
    """Return whether an object is in the collection and matches a field selector such as ``spec.nodeName=a,b!=c``.

    Raises StatusError with 400 for a field that cannot be selected.
    """
    terms = [_term(part, location.kind) for part in text.split(",") if part]
    namespace, name = location.namespace, location.name

    def matches(candidate: Object) -> bool:
        metadata = candidate["metadata"]
        if (namespace and metadata.get("namespace", "") != namespace) or (name and metadata["name"] != name):
            return False
        return all((_field(candidate, path) == value) is equal for path, equal, value in terms)

    return matches


def _term(text: str, kind: Kind) -> tuple[tuple[str, ...], bool, str]:
    name, sign, value = text.partition("!=")
    equal = not sign
    if equal:
        name, sign, value = text.partition("==" if "==" in text else "=")
    if not sign:
        raise statuses.bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    if name not in kind.selectable:
        raise statuses.bad_request(f"field label not supported: {name}")
    return tuple(name.split(".")), equal, value


def _field(candidate: Object, path: tuple[str, ...]) -> str:
    value: Any = candidate
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
