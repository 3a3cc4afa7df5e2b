"""Who may do what on the stand-in API server: bearer tokens, and rules as of RBAC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kubelet_standin.apiserver import statuses

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kubelet_standin.apiserver.kinds import Location

Rule = tuple[str, str]
"""Verb and plural name, with the subresource if there is one; ``*`` stands for any."""


DRIVER: Final = "system:serviceaccount:kube-system:driver"
"""The user that tokens belong to unless another one is given."""
EVERYTHING: Final = {("*", "*")}


class Received(NamedTuple):
    """A request that was received."""

    verb: str
    """As in RBAC rules."""
    location: Location
    user: str

    @property
    def resource(self) -> str:
        """Plural name, with the subresource."""
        subresource = self.location.subresource
        return f"{self.location.kind.plural}/{subresource}" if subresource else self.location.kind.plural


class Access:
    """Tokens and rules. They may be changed at any time."""

    def __init__(self) -> None:
        """Accept every request: without tokens, no token is required, and without rules, everything is allowed."""
        self._tokens: dict[str, str] | None = None
        self._allowed: dict[str, set[Rule]] = {}
        self._forbidden: set[Rule] = set()

    def add_token(self, token: str, user: str = DRIVER) -> None:
        """Accept a token of a user. From the first one on, a request without a valid token gets 401."""
        self._tokens = {**(self._tokens or {}), token: user}

    def expire(self, token: str) -> None:
        """Reject a token from now on. KeyError if it is unknown."""
        tokens = dict(self._tokens or {})
        del tokens[token]
        self._tokens = tokens

    def allow(self, rules: Iterable[Rule], user: str = DRIVER) -> None:
        """Allow a user these rules and nothing else: anything else gets 403. Users without rules may do everything."""
        self._allowed[user] = set(rules)

    def forbid(self, verb: str = "*", resource: str = "*") -> None:
        """Forbid all users a verb on a resource, whatever else allows it."""
        self._forbidden.add((verb, resource))

    def permit(self, verb: str = "*", resource: str = "*") -> None:
        """End :meth:`forbid`, with the same arguments."""
        self._forbidden.discard((verb, resource))

    def authenticate(self, header: str) -> str:
        """Return the user of a request. Raises StatusError with 401."""
        if self._tokens is None:
            return "system:anonymous"
        scheme, _, token = header.partition(" ")
        if scheme != "Bearer" or token not in self._tokens:
            raise statuses.unauthorized()
        return self._tokens[token]

    def authorize(self, request: Received) -> None:
        """Raise StatusError with 403 unless the request is allowed."""
        allowed = self._allowed.get(request.user, EVERYTHING)
        if _has(self._forbidden, request) or not _has(allowed, request):
            raise statuses.forbidden(request.verb, request.location, request.user)


def _has(rules: Collection[Rule], request: Received) -> bool:
    return any((verb, resource) in rules for verb in ("*", request.verb) for resource in ("*", request.resource))
