"""Clients that are admitted to a fleet and then send what harms an average, or a server.

    python -m benchmarks.hostile_clients SERVER CA SEED ID=CERTIFICATE...

Each trains as an honest client does, and then spoils its reply in another way each round. The last
one sends good replies, each of them several times.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord

from benchmarks.wire_client import Call, WireClient, run_all
from fedsz.core.encode import compress
from fedsz.flower.records import sealed, stream_of, to_record
from fedsz.training.apps import make_client_app
from fedsz.training.options import RunConfig
from fedsz.training.task import load_task
from fedsz.transport.credentials import channel_credentials
from fedsz.transport.message_format import EncodedMessage
from tests.hostile_headers import HOSTILE

TASK = "tests.resume_task:Regression"
COPIES = 3
FIRST_SHARE = 1000  # of the data: honest clients have those before


class Spoiler:
    """An app that answers as an honest one does, and spoils the answer."""

    def __init__(self, rng: random.Random) -> None:
        self._honest, self._rng = make_client_app(), rng
        self._shapes = {
            name: x.shape for name, x in load_task(RunConfig(task=TASK)).task.build_model().items()
        }
        self._ways = (
            self._flipped,
            self._cut,
            self._header,
            self._not_finite,
            self._huge,
            self._heavy,
            self._other_metrics,
        )

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        reply = self._honest(message, context)
        if reply.has_content():
            self._rng.choice(self._ways)(reply)
        return reply

    def _flipped(self, reply: Message) -> None:
        """Change some bytes of the stream."""
        stream = bytearray(self._stream(reply))
        for _ in range(self._rng.randint(1, 5)):
            stream[self._rng.randrange(len(stream))] ^= self._rng.randint(1, 255)
        self._send(reply, sealed(bytes(stream)))

    def _cut(self, reply: Message) -> None:
        """Send the beginning of the stream."""
        stream = self._stream(reply)
        self._send(reply, sealed(stream[: self._rng.randrange(len(stream))]))

    def _header(self, reply: Message) -> None:
        """Send a header that asks for gigabytes, with checksums that fit."""
        self._send(reply, sealed(HOSTILE[self._rng.choice(list(HOSTILE))]()))

    def _not_finite(self, reply: Message) -> None:
        """Send NaN or infinities, compressed or plain."""
        arrays = self._filled(self._rng.choice((np.nan, np.inf, -np.inf)))
        compressed = self._rng.random() < 0.5
        self._send(reply, sealed(compress(arrays, 1e-2)) if compressed else to_record(arrays))

    def _huge(self, reply: Message) -> None:
        """Send finite numbers that are far too large."""
        # Each is another one, for equal bytes would count as one update that counts twice.
        value = self._rng.choice((1e2, 1e4, 1e6, 1e30)) * self._rng.uniform(1, 2)
        self._send(reply, to_record(self._filled(value)))

    def _heavy(self, reply: Message) -> None:
        """Move far, and claim to weigh more than all others, or less than nothing."""
        self._huge(reply)
        self._say(reply, {"num-examples": self._rng.choice((10**18, -1, 1e300))})

    def _other_metrics(self, reply: Message) -> None:
        """Move far, and send metrics that are not finite, or lists."""
        self._huge(reply)
        self._say(reply, {"train-loss": self._rng.choice((float("nan"), [1.0, 2.0]))})

    def _filled(self, value: float) -> dict[str, np.ndarray]:
        return {name: np.full(shape, value, np.float32) for name, shape in self._shapes.items()}

    def _stream(self, reply: Message) -> bytes:
        return stream_of(reply.content.array_records["arrays"])

    def _send(self, reply: Message, record: ArrayRecord) -> None:
        reply.content["arrays"] = record

    def _say(self, reply: Message, metrics: dict[str, int | float | list[float]]) -> None:
        told = reply.content.metric_records["metrics"]
        reply.content["metrics"] = MetricRecord({**told, **metrics})


class Repeater(WireClient):
    """Sends each reply several times."""

    async def upload(self, call: Call, reply: EncodedMessage) -> None:
        """Send copies of a reply."""
        for _ in range(COPIES):
            await super().upload(call, reply)


def main() -> None:
    """Run until the server has finished."""
    logging.disable(logging.CRITICAL)
    server, ca, seed, *members = sys.argv[1:]
    clients: list[WireClient] = []
    for i, member in enumerate(members):
        client_id, _, cert = member.partition("=")
        credentials = channel_credentials(ca, cert, Path(cert).with_suffix(".key"))
        share = {"partition-id": FIRST_SHARE + i, "num-partitions": 2 * FIRST_SHARE}
        config = {**share, "task": TASK}
        repeats = i == len(members) - 1
        app = make_client_app() if repeats else Spoiler(random.Random(f"{seed} {client_id}"))
        kind = Repeater if repeats else WireClient
        clients.append(kind(server, client_id, app, config, credentials))
    asyncio.run(run_all(clients))


if __name__ == "__main__":
    main()
