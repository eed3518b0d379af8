"""What a server's run is doing now, by its events."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from fedsz.control.record import RoundRecord
from fedsz.formatting import duration, one_line
from fedsz.training.events import Client, Done, Event, Listening, Receiving, Requested

NAMED: Final = 4  # clients whose replies are missing, in a line
RECENT: Final = 10  # rounds whose median the time left is estimated by


class LiveRound:
    """The round that goes on, and the clients in it. Any thread may take events and read it.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._connected: set[str] = set()
        self._clock = clock
        self._lock = threading.Lock()  # over what follows
        self._asked: set[str] = set()  # clients that the round asks, if that is known
        self._replied: set[str] = set()  # those of them whose replies have come
        self._passed: dict[str, float] = {}  # the share of a reply that is here, by client
        self._listening: Listening | None = None
        self._last: RoundRecord | None = None
        self._took: deque[float] = deque(maxlen=RECENT)
        self._begun = clock()  # when the round began
        self._done = False

    @property
    def rounds(self) -> int:
        """How many the run has; 0 if that is not known."""
        return self._listening.rounds if self._listening else 0

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
        """Take an event into the picture."""
        with self._lock:
            self._take(event)

    def _take(self, event: Event) -> None:
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
            case Requested(clients):
                self._asked = set(clients)
            case Receiving(name, passed, size):
                self._passed[name] = passed / size
            case RoundRecord():
                self._end_round(event)
            case Done():
                self._done = True

    def text(self) -> str:
        """Return what goes on, in a line for people."""
        with self._lock:
            return self._text()

    def _text(self) -> str:
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
        asked = self._in_round
        of = f" of {self.rounds}" if self.rounds else ""
        replies = f"round {self.number}{of}: {len(self._replied & asked)} of {len(asked)} replies"
        missing = sorted(asked - self._replied)
        if not missing:
            return f"{replies}, testing their average{self._time_left()}"
        named = ", ".join(map(one_line, missing[:NAMED])) + " ..." * (len(missing) > NAMED)
        return f"{replies}, waiting for {named}{self._work(missing)}{self._time_left()}"

    def states(self) -> dict[str, str]:
        """Return what each client that is there does, by its name."""
        with self._lock:
            return {name: self._state(name) for name in self._connected}

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
        """Say what the missing clients do, as far as that is known: `` (1 uploading 37 %)``."""
        counts = Counter(
            self._state(name).split()[0] for name in missing if name in self._connected
        )
        uploads = [self._passed[name] for name in missing if name in self._passed]
        parts = [f"{counts['training']} training"] * bool(counts["training"])
        if uploads:
            parts.append(f"{len(uploads)} uploading {100 * statistics.mean(uploads):.0f} %")
        return f" ({', '.join(parts)})" if parts else ""

    def _time_left(self) -> str:
        """Say when the run will be over, by the median of recent rounds; "" before any."""
        if not self._took or self.number > self.rounds:
            return ""
        usual = statistics.median(self._took)
        rest = max(0.0, usual - (self._clock() - self._begun))
        return f", about {duration(rest + usual * (self.rounds - self.number))} left"

    def _end_round(self, record: RoundRecord) -> None:
        if record.round:
            self._took.append(record.seconds)
        self._last, self._begun = record, self._clock()
        self._asked, self._replied = set(self._connected), set()
        self._passed.clear()
