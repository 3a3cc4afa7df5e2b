"""Credentials of a client of the API server that are no files."""

import ssl

from aosp_plugin.framework.apiserver.credentials import Access, ServiceAccount
from aosp_plugin.framework.apiserver.protocol import Request
from aosp_plugin.framework.conditions import Conditions


class StaticCredentials(ServiceAccount):
    """A token, or a certificate in a TLS context, that never changes."""

    def __init__(self, url: str, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        """``url`` is without a path; https requires ``tls``."""
        super().__init__(url, "", conditions=Conditions())
        self._access = Access(token, tls)

    async def access(self, _request: Request) -> Access:
        """Return them."""
        return self._access
