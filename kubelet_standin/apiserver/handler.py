"""HTTP requests of the stand-in API server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web

from kubelet_standin.apiserver import patches, statuses
from kubelet_standin.apiserver.access import Received
from kubelet_standin.apiserver.faults import JSON, Cut, break_connection, status_answer
from kubelet_standin.apiserver.kinds import Kind, Location, locate, selector
from kubelet_standin.apiserver.statuses import StatusError
from kubelet_standin.apiserver.store import Store
from kubelet_standin.apiserver.watches import Watch, WatchOptions

if TYPE_CHECKING:
    from kubelet_standin.apiserver.server import ApiServer

WATCH_SECONDS = 1800.0
"""The duration of a watch without timeoutSeconds; kube-apiserver's is random, 30 to 60 minutes."""

BOOKMARK_SECONDS = 60.0
"""Between two bookmarks of a watch."""

_VERBS = {"POST": "create", "PUT": "update", "DELETE": "delete", "PATCH": "patch"}
_TRUE = {"1", "true", "True"}


class Handler:
    """Answers the requests of one server."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request. Each is counted, with the status of the answer."""
        location = locate(request.path)
        if location is None:
            return web.Response(status=404, text="404 page not found\n")
        received = Received(_verb(request, location), location)
        code = 0
        try:
            response = await self._answer(request, received)
            code = response.status
        except StatusError as error:
            code = error.code
            response = status_answer(error)
        finally:
            self._server.record(received, code)
        return response

    async def _answer(self, request: web.Request, received: Received) -> web.StreamResponse:
        self._server.access.check(request.headers.get("Authorization", ""), received)
        active = self._server.faults.next(received.verb, received.location.kind.plural)
        if active is not None and (answer := await active.fault.answer(request, active)) is not None:
            return answer
        cut = active.fault if active is not None and isinstance(active.fault, Cut) else None
        if received.verb == "watch":
            return await self._watch(request, received.location, cut)
        code, result = process(self._server.store, received, request.query, request.content_type, await request.read())
        body = json.dumps(result, separators=(",", ":")).encode()
        if cut is not None:
            return await _cut_answer(request, body, cut)
        return web.Response(status=code, body=body, headers={"Content-Type": JSON})

    async def _watch(self, request: web.Request, location: Location, cut: Cut | None) -> web.StreamResponse:
        query = request.query
        version = query.get("resourceVersion", "")
        if version and not version.isdecimal():
            raise statuses.bad_request(f"resourceVersion: Invalid value: {version!r}")
        options = WatchOptions(
            location.kind,
            selector(query.get("fieldSelector", ""), location),
            None if version in {"", "0"} else int(version),
            query.get("allowWatchBookmarks", "") in _TRUE,
            float(query.get("timeoutSeconds", "") or WATCH_SECONDS),
        )
        response = web.StreamResponse(headers={"Content-Type": JSON})
        response.enable_chunked_encoding()
        await response.prepare(request)

        async def send(line: bytes) -> None:
            if cut is None:
                await response.write(line)
                return
            await response.write(cut.part(line))
            break_connection(request)

        server = self._server
        watch = Watch(
            options,
            server.store,
            changed=server.next_change,
            silent=lambda: server.faults.silent_watches,
            bookmark_interval=BOOKMARK_SECONDS,
        )
        with server.watching(watch):
            await watch.run(send)
        await response.write_eof()
        return response


def process(
    store: Store, received: Received, query: Mapping[str, str], content_type: str, body: bytes
) -> tuple[int, dict[str, Any]]:
    """Return status and body of the answer to a request that is no watch. Raises StatusError."""
    location = received.location
    match received.verb:
        case "get":
            return 200, store.get(location)
        case "list" | "deletecollection" as verb:
            matches = selector(query.get("fieldSelector", ""), location)
            select = store.list if verb == "list" else store.delete_all
            return 200, _collection(location.kind, select(location.kind, matches), store)
        case "create":
            return 201, store.create(location, _object(body), dry_run=query.get("dryRun") == "All")
        case "update":
            return 200, store.update(location, _object(body))
        case "patch" if location.name:
            return 200, store.update(location, patches.apply(content_type, body, store.get(location)))
        case "delete":
            preconditions = _object(body).get("preconditions") or {} if body else {}
            return 200, store.delete(location, preconditions)
        case _:
            raise StatusError(405, "MethodNotAllowed", "the server does not allow this method on the resource")


def _verb(request: web.Request, location: Location) -> str:
    if request.method == "GET":
        if location.name:
            return "get"
        return "watch" if request.query.get("watch", "") in _TRUE else "list"
    verb = _VERBS.get(request.method, request.method.lower())
    return "deletecollection" if verb == "delete" and not location.name else verb


async def _cut_answer(request: web.Request, body: bytes, cut: Cut) -> web.StreamResponse:
    """Send a part of an answer, and break the connection."""
    response = web.StreamResponse(headers={"Content-Type": JSON, "Content-Length": str(len(body))})
    if cut.after is not None:
        await response.prepare(request)
        await response.write(cut.part(body))
    break_connection(request)
    return response


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise statuses.bad_request(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise statuses.bad_request("the body is not an object")
    return value


def _collection(kind: Kind, items: Iterable[dict[str, Any]], store: Store) -> dict[str, Any]:
    for item in items:  # lists of built-in types have it once, for all
        del item["kind"], item["apiVersion"]
    metadata = {"resourceVersion": str(store.revision)}
    return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata, "items": [*items]}
