"""gRPC without sockets: servers at simulated paths, and channels to them. Messages are the encoded ones."""

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import grpc

from tests.simulation.processes import CURRENT, Process, current

if TYPE_CHECKING:
    from tests.simulation.host import Host


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """Return the error of a call."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, "")


class _Details(NamedTuple):
    method: str
    invocation_metadata: tuple[()] = ()


class _Context:
    """What a handler gets besides its request."""

    def __init__(self, write: Callable[[bytes], None], deadline: float | None) -> None:
        self._write, self._deadline = write, deadline

    async def write(self, message: bytes) -> None:
        """Send a message of a stream."""
        self._write(message)
        await asyncio.sleep(0)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the call with an error."""
        raise failure(code, details)

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline."""
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()


class Server:
    """A server of the plugin."""

    def __init__(self, host: "Host", process: Process) -> None:
        self._host, self._process = host, process
        self._handlers: list[Any] = []
        self._path = ""
        self._context = contextvars.copy_context()
        self._calls: set[asyncio.Task[Any]] = set()
        self.is_stopped = False
        self.pid = process.pid
        self._at_death = process.at_death

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """See grpc."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """See grpc: generated code calls it besides, with the same handlers."""

    def add_insecure_port(self, address: str) -> int:
        """Create the socket."""
        self._path = address.removeprefix("unix:")
        self._host.change("bind", self._path)
        self._host.bind(self._path, self)
        self._at_death.append(self._end)
        return 1

    async def start(self) -> None:
        """See grpc."""

    async def stop(self, grace: float | None) -> None:
        """Accept no more calls, and end those that go on after the grace."""
        self._host.close_listener(self)
        if self._calls and grace is not None:
            await asyncio.wait(self._calls, timeout=grace)
        self._end()
        if self._end in self._at_death:
            self._at_death.remove(self._end)

    def _end(self) -> None:
        self.is_stopped = True
        self._host.close_listener(self)
        for call in self._calls:
            call.cancel()

    def _handler(self, method: str) -> Any:
        for each in self._handlers:
            if (found := each.service(_Details(method))) is not None:
                return found
        raise failure(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {method}")

    async def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        """Call a method. Raises AioRpcError."""
        handler, loop = self._handler(method), asyncio.get_running_loop()
        decode = handler.request_deserializer or bytes
        encode = handler.response_serializer or bytes
        context = _Context(lambda _: None, None if timeout is None else loop.time() + timeout)
        call = self._task(handler.unary_unary(decode(request), context))
        try:
            async with asyncio.timeout(timeout):
                return bytes(encode(await asyncio.shield(call)))
        except TimeoutError:
            call.cancel()
            raise failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        except asyncio.CancelledError:
            if call.cancelled():
                raise failure(grpc.StatusCode.UNAVAILABLE, "Socket closed") from None
            call.cancel()  # as a server of gRPC does (aio/server.pyx.pxi, ``_handle_cancellation_from_core``)
            raise
        except grpc.aio.AioRpcError:
            raise
        except Exception as error:
            raise failure(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}") from error

    async def stream(self, method: str, request: bytes) -> AsyncIterator[bytes]:
        """Yield the messages of a stream until it ends. Raises AioRpcError."""
        handler = self._handler(method)
        messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        call = self._task(_stream(handler, request, messages.put_nowait))
        call.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            call.cancel()
        if not call.cancelled() and call.exception() is not None:
            raise failure(grpc.StatusCode.UNKNOWN, str(call.exception()))

    def _task(self, work: Any) -> asyncio.Task[Any]:
        if self.is_stopped or not self._process.alive:
            work.close()
            raise failure(grpc.StatusCode.UNAVAILABLE, "Connection refused")
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._process.tasks.add(task)
        task.add_done_callback(self._process.tasks.discard)
        self._calls.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # mark it as retrieved: the client may have gone


async def _stream(handler: Any, request: bytes, write: Callable[[bytes], None]) -> None:
    """Run a method that streams, either a coroutine or a generator."""
    decode: Callable[[bytes], Any] = handler.request_deserializer or bytes
    encode: Callable[[Any], bytes] = handler.response_serializer or bytes
    work = handler.unary_stream(decode(request), _Context(lambda message: write(encode(message)), None))
    if not inspect.isasyncgen(work):
        await work
        return
    async with contextlib.aclosing(work) as messages:
        async for message in messages:
            write(encode(message))


Method = Callable[[bytes], Awaitable[bytes]]


class Peer:
    """A server of the world, such as the kubelet: methods by name."""

    def __init__(self, methods: dict[str, Method]) -> None:
        self.methods = methods

    async def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        """Call a method. Raises AioRpcError."""
        if method not in self.methods:
            raise failure(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {method}")
        try:
            async with asyncio.timeout(timeout):
                return await self.methods[method](request)
        except TimeoutError:
            raise failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None


class _Channel:
    """A channel of the plugin to a socket of the world."""

    def __init__(self, host: "Host", address: str) -> None:
        self._host, self._path = host, address.removeprefix("unix:")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def unary_unary(self, method: str, *, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """Return the call of a method, as generated stubs expect it."""

        async def call(request: Any, timeout: float | None = None, **_: Any) -> Any:
            if not current().alive:
                raise failure(grpc.StatusCode.UNAVAILABLE, "dead")
            await asyncio.sleep(self._host.rng.uniform(0.0001, 0.001))
            try:
                peer = self._host.connected(self._path)
            except OSError:
                peer = None
            if peer is None:
                raise failure(grpc.StatusCode.UNAVAILABLE, "Connection refused")
            token = CURRENT.set(None)
            try:
                answer = await peer.call(method, request_serializer(request), timeout)
            finally:
                CURRENT.reset(token)
            return response_deserializer(answer)

        return call


class SimulatedAio:
    """What the plugin uses of grpc.aio."""

    AioRpcError = grpc.aio.AioRpcError

    def __init__(self, host: "Host") -> None:
        self._host = host

    def server(self, options: Any = None) -> Server:  # noqa: ARG002 - as in grpc
        """See grpc.aio."""
        return Server(self._host, current())

    def insecure_channel(self, address: str, options: Any = None) -> _Channel:  # noqa: ARG002 - as in grpc
        """See grpc.aio."""
        return _Channel(self._host, address)


class SimulatedGrpc:
    """What the plugin uses of grpc; handlers and codes are the real ones."""

    def __init__(self, host: "Host") -> None:
        self.aio = SimulatedAio(host)

    def __getattr__(self, name: str) -> Any:
        return getattr(grpc, name)
