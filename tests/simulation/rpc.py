"""gRPC without sockets: servers at simulated paths, and channels to them. Messages are the encoded ones."""

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import grpc

from tests.simulation.processes import CURRENT, System

if TYPE_CHECKING:
    from tests.simulation.host import Host


LATE = 0.3
"""Seconds, at the most, until a client hears of the end of a stream."""
RECONNECT = 0.5
"""Seconds between two attempts to connect."""


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
    """A server of the process that creates it."""

    def __init__(self, host: "Host") -> None:
        self._host = host
        self._process = CURRENT.get()
        """None for a server of the world, such as a kubelet."""
        self._handlers: list[Any] = []
        self._path = ""
        self._context = contextvars.copy_context()
        self._calls: set[asyncio.Task[Any]] = set()
        self.has_stopped = asyncio.Event()
        self.pid = 0 if self._process is None else self._process.pid

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """See grpc."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """See grpc: generated code calls it besides, with the same handlers."""

    def add_insecure_port(self, address: str) -> int:
        """Create the socket."""
        self._path = address.removeprefix("unix:")
        if self._process is not None:
            self._host.change("bind", self._path)
            self._process.at_death.append(self._end)
        self._host.bind(self._path, self)
        return 1

    async def start(self) -> None:
        """See grpc."""

    async def stop(self, grace: float | None) -> None:
        """Accept no more calls, and end those that go on after the grace."""
        self._host.close_listener(self)
        if self._calls and grace is not None:
            await asyncio.wait(self._calls, timeout=grace)
        self._end()
        if self._process is not None and self._end in self._process.at_death:
            self._process.at_death.remove(self._end)

    @property
    def is_stopped(self) -> bool:
        """Whether it has ended."""
        return self.has_stopped.is_set()

    def _end(self) -> None:
        self.has_stopped.set()
        self._host.close_listener(self)
        for call in self._calls:
            call.cancel()

    def _handler(self, method: str) -> Any:
        for each in self._handlers:
            if (found := each.service(_Details(method))) is not None:
                return found
        raise failure(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {method}")

    async def call(
        self,
        method: str,
        request: bytes,
        timeout: float | None = None,
        began: Callable[[asyncio.Future[Any]], None] = lambda _: None,
    ) -> bytes:
        """Call a method; ``began`` gets the future of its answer, which its client may cancel. Raises AioRpcError."""
        handler, loop = self._handler(method), asyncio.get_running_loop()
        decode = handler.request_deserializer or bytes
        encode = handler.response_serializer or bytes
        context = _Context(lambda _: None, None if timeout is None else loop.time() + timeout)
        call = self._task(handler.unary_unary(decode(request), context))
        answer = asyncio.shield(call)
        began(answer)
        try:
            async with asyncio.timeout(timeout):
                return bytes(encode(await answer))
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

    def stream(self, method: str, request: bytes, stream: "Stream") -> None:
        """Begin a call whose answer is a stream. Raises AioRpcError."""
        call = self._task(_stream(self._handler(method), request, stream.put))
        stream.cancelled = call.cancel

        def ended(_: object) -> None:
            """Report the end, of which the client hears later."""
            end: BaseException = StopAsyncIteration()
            if call.cancelled():
                end = failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            elif (error := call.exception()) is not None:
                end = error if isinstance(error, grpc.RpcError) else failure(grpc.StatusCode.UNKNOWN, str(error))
            self._host.later(self._host.rng.uniform(0.0, LATE), lambda: stream.put(end))

        call.add_done_callback(ended)

    def _task(self, work: Any) -> asyncio.Task[Any]:
        if self.is_stopped or (self._process is not None and not self._process.alive):
            work.close()
            raise failure(grpc.StatusCode.UNAVAILABLE, "Connection refused")
        task: asyncio.Task[Any] = self._context.copy().run(asyncio.get_running_loop().create_task, work)
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


class Stream:
    """A call whose answer is a stream, as its client sees it."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._messages: asyncio.Queue[bytes | BaseException] = asyncio.Queue()
        self.put = self._messages.put_nowait
        """Adds a message, or the end."""
        self.cancelled: Callable[[], object] = bool
        """Tells the server that the client has ended it."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._messages.get()
        if isinstance(message, BaseException):
            raise message
        return self._decode(message)

    def cancel(self) -> None:
        """End it as the client."""
        self.cancelled()
        self.put(asyncio.CancelledError())


class Channel:
    """A channel to a simulated socket, of the process that opens it."""

    def __init__(self, host: "Host", address: str, called: Callable[[str], None] = lambda _: None) -> None:
        """``called`` gets the name of each method before its call."""
        self._host, self._path, self._called = host, address.removeprefix("unix:"), called
        self._process = CURRENT.get()
        self._server: Server | None = None
        self._is_closed = False
        self._streams: list[Stream] = []
        self._answers: dict[asyncio.Future[Any], None] = {}  # in their order, which a set of them has not

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:  # noqa: ARG002 - as in grpc
        """End all calls."""
        self._is_closed = True
        for stream in self._streams:
            stream.cancel()
        for answer in [*self._answers]:
            answer.cancel()

    def _connected(self) -> Server | None:
        """Return the server, of the socket that is there if there is no connection; None if nothing listens."""
        if self._server is None or self._server.is_stopped:
            self._server = None
            with contextlib.suppress(OSError):
                self._server = self._host.connected(self._path)
        return self._server

    def _began(self, answer: asyncio.Future[Any]) -> None:
        self._answers[answer] = None
        answer.add_done_callback(self._answers.pop)

    async def channel_ready(self) -> None:
        """See grpc."""
        while self._connected() is None:  # noqa: ASYNC110 - a socket that appears sets no event
            await asyncio.sleep(RECONNECT)

    def get_state(self, *, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: ARG002 - as in grpc
        """See grpc."""
        is_ready = self._connected() is not None
        return grpc.ChannelConnectivity.READY if is_ready else grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def wait_for_state_change(self, state: grpc.ChannelConnectivity) -> None:
        """See grpc."""
        while self.get_state() is state:
            if self._server is None:
                await asyncio.sleep(RECONNECT)
            else:
                await self._server.has_stopped.wait()

    def unary_unary(self, method: str, *, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """Return the call of a method, as generated stubs expect it."""

        async def call(request: Any, timeout: float | None = None, **_: Any) -> Any:
            if self._process is not None and not self._process.alive:
                raise failure(grpc.StatusCode.UNAVAILABLE, "dead")
            await asyncio.sleep(self._host.rng.uniform(0.0001, 0.001))
            if self._is_closed:
                raise asyncio.CancelledError
            if (server := self._connected()) is None:
                raise failure(grpc.StatusCode.UNAVAILABLE, "Connection refused")
            self._called(method)
            return response_deserializer(await server.call(method, request_serializer(request), timeout, self._began))

        return call

    def unary_stream(self, method: str, *, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """Return the call of a method whose answer is a stream."""

        def call(request: Any) -> Stream:
            stream = Stream(response_deserializer)
            self._streams.append(stream)
            try:
                if (server := self._connected()) is None:
                    raise failure(grpc.StatusCode.UNAVAILABLE, "Connection refused")
                server.stream(method, request_serializer(request), stream)
            except grpc.aio.AioRpcError as error:
                stream.put(error)
            return stream

        return call


class SimulatedAio(System):
    """What the plugin uses of grpc.aio. Errors and other types are the real ones."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(grpc.aio, name)
        assert isinstance(value, type), name
        return value

    def server(self, options: Any = None) -> Server:  # noqa: ARG002 - as in grpc
        """See grpc.aio."""
        return Server(self.host)

    def insecure_channel(self, address: str, options: Any = None) -> Channel:  # noqa: ARG002 - as in grpc
        """See grpc.aio."""
        return Channel(self.host, address)


class SimulatedGrpc:
    """What the plugin uses of grpc; handlers and codes are the real ones."""

    def __init__(self) -> None:
        self.aio = SimulatedAio()

    def __getattr__(self, name: str) -> Any:
        return getattr(grpc, name)
