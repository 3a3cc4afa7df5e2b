"""A client of the API server: JSON in, JSON out.

Each request has a connection of its own, because tests kill the API server.
"""

import http.client
import json
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from tests.e2e.cluster.certificates import Certificate
from tests.e2e.common.waiting import PATIENCE

CORE: Final = "/api/v1"
APPS: Final = "/apis/apps/v1"


def is_ready(thing: dict[str, Any]) -> bool:
    """Return whether a Node or a pod has the condition Ready."""
    conditions = thing.get("status", {}).get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


class ApiError(OSError):
    """The API server refused a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        """``status`` is the HTTP status, ``reason`` the API's reason, such as AlreadyExists."""
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class Api:
    """Requests to one API server as one user. Its methods may be called from any thread."""

    def __init__(self, host: str, port: int, authority: Path, client: Certificate | str) -> None:
        """``authority`` is the file of the certificate authority, ``client`` the user's certificate or token."""
        self._address = (host, port)
        self._context = ssl.create_default_context(cafile=str(authority))
        self._headers = {"Authorization": f"Bearer {client}"} if isinstance(client, str) else {}
        if not isinstance(client, str):
            self._context.load_cert_chain(*map(str, client))

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object. Raises ApiError, and OSError if the API server does not answer."""
        answer: dict[str, Any] = json.loads(self.text("GET", path, query=query))
        return answer

    def list(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects of a collection; ``labelSelector`` and ``fieldSelector`` select some of them."""
        return list(self.get(path, **query)["items"])

    def find(self, path: str) -> dict[str, Any] | None:
        """Return an object, or None if it does not exist."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == http.client.NOT_FOUND:
                return None
            raise

    def create(self, path: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
        """Create an object in a collection."""
        answer: dict[str, Any] = json.loads(self.text("POST", path, body, query=query))
        return answer

    def patch(self, path: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
        """Change an object by a merge patch."""
        answer: dict[str, Any] = json.loads(self.text("PATCH", path, body, query=query))
        return answer

    def delete(self, path: str, **query: str) -> None:
        """Delete an object, or all objects of a collection; without an error if it does not exist."""
        try:
            self.text("DELETE", path, query=query)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def watch(self, path: str, seconds: float, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a collection for some seconds, those since ``resourceVersion`` if the query has it."""
        query |= {"watch": "true", "timeoutSeconds": str(max(1, round(seconds)))}
        connection = self._connect(seconds + PATIENCE)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", headers=self._headers)
            response = connection.getresponse()
            if response.status >= http.client.BAD_REQUEST:
                _raise(response.status, response.read())
            while line := response.readline():
                yield json.loads(line)
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"{path}: {error!r}") from error
        finally:
            connection.close()

    def text(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        *,
        query: dict[str, str] | None = None,
        seconds: float = PATIENCE,
    ) -> str:
        """Send a request, and return the body of the answer. Raises ApiError for a status of 400 or more.

        PATCH is a merge patch, or with a list a JSON patch.
        """
        content = "application/json"
        if method == "PATCH":
            content = f"application/{'merge' if isinstance(body, dict) else 'json'}-patch+json"
        connection = self._connect(seconds)
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = self._headers | ({"Content-Type": content} if data else {})
            connection.request(method, f"{path}?{urlencode(query)}" if query else path, data, headers)
            response = connection.getresponse()
            answer = response.read()
        except http.client.HTTPException as error:
            raise OSError(f"{path}: {error!r}") from error
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            _raise(response.status, answer)
        return answer.decode()

    def _connect(self, seconds: float) -> http.client.HTTPSConnection:
        host, port = self._address
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._context)


def _raise(status: int, answer: bytes) -> None:
    """Raise the ApiError of an answer, which is a Status object, or text from a proxied server."""
    try:
        body = json.loads(answer)
    except ValueError:
        body = {}
    raise ApiError(status, body.get("reason", ""), body.get("message", answer.decode(errors="replace")[:500]))
