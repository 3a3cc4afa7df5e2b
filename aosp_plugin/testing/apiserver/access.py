"""Who may do what on the stand-in API server: bearer tokens, and rules as of RBAC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.testing.apiserver import statuses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aosp_plugin.testing.apiserver.handler import Received

Rule = tuple[str, str]
"""Verb and plural name, with the subresource if there is one; ``*`` stands for any."""


class Access:
    """Tokens and rules. They may be changed at any time."""

    def __init__(self) -> None:
        """Without tokens, every request is accepted."""
        self.tokens: dict[str, str] = {}
        """User names by valid token. Unless it is empty, a request without a valid token gets 401."""
        self.allowed: set[Rule] | None = None
        """What may be done; None for everything. Anything else gets 403."""
        self.forbidden: set[Rule] = set()
        """What may not be done, in addition."""

    def add_token(self, token: str, user: str = "system:serviceaccount:default:driver") -> None:
        """Accept a token."""
        self.tokens[token] = user

    def expire(self, token: str) -> None:
        """Reject a token from now on. At least one other one must be left."""
        del self.tokens[token]
        if not self.tokens:
            self.tokens[""] = "nobody has an empty token"  # wording: ok

    def allow(self, rules: Iterable[Rule]) -> None:
        """Allow these rules and nothing else."""
        self.allowed = set(rules)

    def forbid(self, verb: str = "*", resource: str = "*") -> None:
        """Forbid a verb on a resource."""
        self.forbidden.add((verb, resource))

    def authenticate(self, header: str) -> str:
        """Return the user of a request. Raises StatusError with 401."""
        if not self.tokens:
            return "system:anonymous"
        scheme, _, token = header.partition(" ")
        if scheme != "Bearer" or not token or token not in self.tokens:
            raise statuses.unauthorized()
        return self.tokens[token]

    def authorize(self, request: Received) -> None:
        """Raise StatusError with 403 unless the request is allowed."""
        denied = _has(self.forbidden, request)
        if denied or (self.allowed is not None and not _has(self.allowed, request)):
            raise statuses.forbidden(request.verb, request.location, request.user)


def _has(rules: set[Rule], request: Received) -> bool:
    return any((verb, resource) in rules for verb in ("*", request.verb) for resource in ("*", request.resource))
