"""Who may do what on the stand-in API server: bearer tokens, and rules as of RBAC."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kubelet_standin.apiserver import statuses
from kubelet_standin.apiserver.kinds import Location
from kubelet_standin.apiserver.statuses import StatusError

Rule = tuple[str, str]
"""Verb and plural name, with the subresource if there is one; ``*`` stands for any."""

DRIVER: Final = "system:serviceaccount:kube-system:driver"
"""The user that tokens belong to unless another one is given."""
EVERYTHING: Final[frozenset[Rule]] = frozenset({("*", "*")})


class Received(NamedTuple):
    """A request that was received."""

    verb: str
    """As in RBAC rules."""
    location: Location

    @property
    def resource(self) -> str:
        """Plural name, with the subresource."""
        subresource = self.location.subresource
        return f"{self.location.kind.plural}/{subresource}" if subresource else self.location.kind.plural


class User(NamedTuple):
    """The owner of a token, and what it may do."""

    name: str
    rules: frozenset[Rule]


ANYBODY: Final = User("system:anonymous", EVERYTHING)


class Access:
    """Tokens and their rules. They may be changed at any time."""

    def __init__(self) -> None:
        """Accept every request: without tokens, no token is required."""
        self._users: dict[str, User] | None = None
        """By the header of their requests."""

    def add_token(self, token: str, user: str = DRIVER, rules: Iterable[Rule] = EVERYTHING) -> None:
        """Accept a token; anything but the rules gets 403. From the first token on, others get 401."""
        self._users = {**(self._users or {}), f"Bearer {token}": User(user, frozenset(rules))}

    def expire(self, token: str) -> None:
        """Reject a token from now on. KeyError if it is unknown."""
        (self._users or {}).pop(f"Bearer {token}")

    def check(self, header: str, request: Received) -> None:
        """Raise StatusError unless a request with this header is allowed: with 401, or with 403."""
        user = ANYBODY if self._users is None else self._users.get(header)
        if user is None:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        if not any((verb, name) in user.rules for verb in ("*", request.verb) for name in ("*", request.resource)):
            raise statuses.forbidden(request.verb, request.location, user.name)
