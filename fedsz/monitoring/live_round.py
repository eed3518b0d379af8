"""The present state of a server's run, by its events."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from fedsz.control.record import RoundRecord
from fedsz.formatting import duration, one_line
from fedsz.training.events import Client, Done, Event, Listening, Receiving

NAMED: Final = 4  # clients whose replies are missing, in a line
RECENT: Final = 10  # rounds whose median the time left is estimated by


class LiveRound:
    """The round that goes on, and the clients in it. Any thread may call it.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.RLock()
        self._connected: set[str] = set()
        self._asked: set[str] = set()  # clients that were there when the round began
        self._replied: set[str] = set()  # those of them whose replies have come
        self._passed: dict[str, float] = {}  # the share of a reply that is here, by client
        self._listening: Listening | None = None
        self._last: RoundRecord | None = None
        self._took: deque[float] = deque(maxlen=RECENT)
        self._begun = clock()  # when the round began
        self._done = False

    @property
    def number(self) -> int:
        """The round that is going on; 0 while the model to start from is tested."""
        if self._last:
            return self._last.round + 1
        return self._listening.first_round if self._listening else 0

    @property
    def ready(self) -> bool:
        """Whether clients are served."""
        return self._listening is not None and not self._done

    @property
    def connected(self) -> int:
        """How many clients are connected."""
        return len(self._connected)

    def take(self, event: Event) -> None:
        """Take an event of the run."""
        with self._lock:
            match event:
                case Listening():
                    self._listening = event
                case Client(name, "joined"):
                    self._connected.add(name)
                case Client(name, "left"):
                    self._connected.discard(name)
                    self._passed.pop(name, None)
                case Client(name, "received", ""):
                    self._replied.add(name)
                    self._passed.pop(name, None)
                case Receiving(name, passed, size):
                    self._passed[name] = passed / size
                case RoundRecord():
                    self._end_round(event)
                case Done():
                    self._done = True

    def text(self) -> str:
        """Return the state of the run, in a line for people."""
        with self._lock:
            if self._done:
                return "sending the clients home"
            if not self._listening:
                return "starting the server"
            if self._last is None:
                here, wanted = len(self._connected), self._listening.min_clients
                if here < wanted:
                    return f"waiting for clients: {here} of {wanted}"
                if not self.number:
                    return "testing the model to start from"
            return self._round_text(self._listening.rounds)

    def states(self) -> dict[str, str]:
        """Return the state of each connected client, by its name."""
        with self._lock:
            return {name: self._state(name) for name in self._connected}

    def _round_text(self, rounds: int) -> str:
        number, asked = self.number, self._in_round
        of = f" of {rounds}" if rounds else ""
        replies = f"round {number}{of}: {len(self._replied)} of {len(asked)} replies"
        left = self._time_left(rounds - number)
        missing = sorted(asked - self._replied)
        if not missing:
            return f"{replies}, testing their average{left}"
        named = ", ".join(map(one_line, missing[:NAMED])) + " ..." * (len(missing) > NAMED)
        return f"{replies}, waiting for {named}{self._work(missing)}{left}"

    @property
    def _in_round(self) -> set[str]:
        return self._asked or self._connected

    def _state(self, name: str) -> str:
        if name in self._passed:
            return f"uploading {100 * self._passed[name]:.0f} %"
        if self._done or not self.number or name not in self._in_round:
            return "connected"
        return "replied" if name in self._replied else "training"

    def _work(self, missing: list[str]) -> str:
        """Return the work of the missing clients, if it is known: `` (1 uploading 37 %)``."""
        counts = Counter(
            self._state(name).split()[0] for name in missing if name in self._connected
        )
        uploads = [self._passed[name] for name in missing if name in self._passed]
        parts = [f"{counts['training']} training"] * bool(counts["training"])
        if uploads:
            parts.append(f"{len(uploads)} uploading {100 * statistics.mean(uploads):.0f} %")
        return f" ({', '.join(parts)})" if parts else ""

    def _time_left(self, rounds: int) -> str:
        """Return the time that this and ``rounds`` more take, by the median of recent ones."""
        if not self._took or rounds < 0:
            return ""
        median = statistics.median(self._took)
        rest = max(0.0, median - (self._clock() - self._begun))
        return f", about {duration(rest + median * rounds)} left"

    def _end_round(self, record: RoundRecord) -> None:
        if record.round:
            self._took.append(record.seconds)
        self._last, self._begun = record, self._clock()
        self._asked, self._replied = set(self._connected), set()
        self._passed.clear()
