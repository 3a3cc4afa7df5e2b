"""Errors of the stand-in API server, with the texts of kube-apiserver (apimachinery/pkg/api/errors/errors.go)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kubelet_standin.apiserver.kinds import Kind, Location


class StatusError(Exception):
    """A request that the server refuses: HTTP status, reason and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message

    def body(self) -> dict[str, Any]:
        """Return the Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def forbidden(verb: str, location: Location, user: str) -> StatusError:
    """403."""
    kind = location.kind
    scope = f'in the namespace "{location.namespace}"' if location.namespace else "at the cluster scope"
    name = f' "{location.name}"' if location.name else ""
    message = (
        f'{kind.qualified}{name} is forbidden: User "{user}" cannot {verb} resource "{kind.plural}" in API group '
        f'"{kind.group}" {scope}'
    )
    return StatusError(403, "Forbidden", message)


def not_found(kind: Kind, name: str) -> StatusError:
    """404."""
    return StatusError(404, "NotFound", f'{kind.qualified} "{name}" not found')


def unprocessable(message: str) -> StatusError:
    """422 for a JSON patch that cannot be applied."""
    text = f"the server rejected our request due to an error in our request: {message}"
    return StatusError(422, "Invalid", text)


def already_exists(kind: Kind, name: str) -> StatusError:
    """409."""
    return StatusError(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists')


def conflict(kind: Kind, name: str, problem: str) -> StatusError:
    """409, because the object has changed or is another one."""
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {problem}'
    return StatusError(409, "Conflict", message)


def invalid(kind: Kind, name: str, causes: Sequence[str]) -> StatusError:
    """422."""
    message = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
    qualified = f"{kind.name}.{kind.group}" if kind.group else kind.name
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {message}')
