"""How fast a link is: bytes there and back between a client and a server that does other things.

A probe is one gRPC stream on the server's port, beside those of its clients, under the same TLS.
Each frame of the client is a number, 8 bytes, little-endian, and any bytes after it. The server
answers by so many bytes, in frames.

A server takes one probe of an address at a time, and a few in all. It ends each after some seconds
or some bytes, and keeps none.
"""

from __future__ import annotations

import asyncio
import os
import queue
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import grpc

from fedsz.errors import LinkError
from fedsz.transport.channel import SERVICE, check_address, explain, open_channel
from fedsz.transport.frames import CHUNK_BYTES
from fedsz.transport.identity import Identities
from fedsz.transport.tls import objection
from fedsz.transport.visitors import address_of

PROBE_METHOD: Final = "Probe"

MAX_PROBES: Final = 4  # at a time: they share the link, so more would measure little
MAX_SECONDS: Final = 30.0  # of a probe, and
MAX_BYTES: Final = 256 << 20  # up and down together

_PINGS: Final = 5
_SIZES: Final = tuple(1 << i for i in range(14, 27, 2))  # bytes: 16 kiB to 64 MiB
_LONG_ENOUGH: Final = 0.5  # seconds that tell a bandwidth, after TCP has found its pace
_NUMBER: Final = 8  # bytes of the number


class Probed(NamedTuple):
    """What a probe has measured."""

    up: float  # bits a second from the client to the server, as gRPC's messages carry them
    down: float  # the same from the server to the client
    latency: float  # seconds one way: half of what a small message takes there and back


def probe(server: str, *, credentials: grpc.ChannelCredentials | None = None) -> Probed:
    """Measure the link to a server that listens, before or during its run.

    Sends ever more bytes each way until they take half a second. On a slow link that is some
    16 kB; on a fast one up to 64 MB, which takes less than a second.

    ``credentials`` are those of a client; None sends plain text.

    Raises:
        ConfigError: ``server`` is not ``host:port``.
        LinkError: there is no server, or it has no time or no probe; or the link is too slow for
            16 kB each way in 30 s.
    """
    check_address(server)
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with open_channel(server, credentials) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/{PROBE_METHOD}")
        call = stream(iter(outbox.get, None), timeout=MAX_SECONDS)
        try:
            return _Prober(call, outbox.put).measure()
        except grpc.RpcError as err:
            why = explain(err) + objection(server, secure=credentials is not None)
            raise LinkError(f"no probe of {server}: {why}") from err
        except StopIteration:
            raise LinkError(f"no probe of {server}: it ended the stream early") from None
        finally:
            outbox.put(None)
            call.cancel()


class _Prober:
    """The client's end of a probe; StopIteration tells that the server has ended it."""

    def __init__(self, answers: Iterator[bytes], put: Callable[[bytes], None]) -> None:
        self._answers, self._put = answers, put
        self._noise = os.urandom(CHUNK_BYTES)  # so that nothing on the way can make it shorter

    def measure(self) -> Probed:
        self._exchange(0, 1)  # until the channel stands
        there_and_back = min([self._exchange(0, 1) for _ in range(_PINGS)])
        up = self._bandwidth(lambda nbytes: self._exchange(nbytes, 1), there_and_back)
        down = self._bandwidth(lambda nbytes: self._exchange(0, nbytes), there_and_back)
        return Probed(up, down, there_and_back / 2)

    def _exchange(self, up: int, down: int) -> float:
        """Send so many bytes, then get so many; return how long it took."""
        start = time.perf_counter()
        for sent in range(0, up, CHUNK_BYTES):
            self._put(bytes(_NUMBER) + self._noise[: up - sent])
        self._put(down.to_bytes(_NUMBER, "little"))
        while down > 0:
            down -= len(next(self._answers))
        return time.perf_counter() - start

    def _bandwidth(self, exchange: Callable[[int], float], there_and_back: float) -> float:
        for nbytes in _SIZES:
            # The first bit's way there and the answer's way back are not the bandwidth's.
            seconds = exchange(nbytes) - there_and_back
            if seconds >= _LONG_ENOUGH:
                break
        return 8 * nbytes / max(seconds, 1e-9)


class Probes:
    """The server's end of all probes. Lives on one event loop, as the Hub does."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._busy: set[str] = set()  # addresses

    async def serve(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        """Answer one probe: gRPC calls this for each stream."""
        try:
            self._identities.of(context)
        except LinkError as err:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(err))
        address = address_of(context.peer())
        if address in self._busy or len(self._busy) >= MAX_PROBES:
            text = "this server is probed by somebody else; try again in a while"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._busy.add(address)
        try:
            async with asyncio.timeout(MAX_SECONDS):
                trouble = await self._answer(context)
        except TimeoutError:
            trouble = f"a probe may take {MAX_SECONDS:g} s"
        finally:
            self._busy.remove(address)
        if trouble:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, trouble)

    async def _answer(self, context: grpc.aio.ServicerContext) -> str:
        """Answer until the client has enough, or what it may have; then say so."""
        total = 0
        chunk = os.urandom(CHUNK_BYTES)
        while (raw := await context.read()) is not grpc.aio.EOF:
            if len(raw) < _NUMBER:
                return "no such frame in a probe"
            wanted = int.from_bytes(raw[:_NUMBER], "little")
            total += len(raw) - _NUMBER
            total += wanted
            if total > MAX_BYTES:
                return f"a probe may send and ask for {MAX_BYTES >> 20} MiB in all"
            while wanted > 0:
                await context.write(chunk[:wanted])
                wanted -= CHUNK_BYTES
        return ""
