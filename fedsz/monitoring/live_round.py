"""What a server's run is doing now, by its events."""

from __future__ import annotations

import threading
from typing import Final

from fedsz.control.record import RoundRecord
from fedsz.formatting import one_line
from fedsz.training.events import Client, Done, Event, Listening, Requested

NAMED: Final = 4  # clients whose replies are missing, in a line


class LiveRound:
    """The round that goes on, and the clients in it. Any thread may take events and read it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # over what follows
        self._connected: set[str] = set()
        self._asked: set[str] = set()  # clients that the round asks, if that is known
        self._replied: set[str] = set()  # those of them whose replies have come
        self._listening: Listening | None = None
        self._last: RoundRecord | None = None
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
        """Take an event into the picture."""
        with self._lock:
            match event:
                case Listening():
                    self._listening = event
                case Client(name, "joined"):
                    self._connected.add(name)
                case Client(name, "left"):
                    self._connected.discard(name)
                case Client(name, "received", ""):
                    self._replied.add(name)
                case Requested(clients):
                    self._asked = set(clients)
                case RoundRecord():
                    self._last = event
                    self._asked, self._replied = set(self._connected), set()
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
        of = f" of {self._listening.rounds}" if self._listening.rounds else ""
        replies = f"round {self.number}{of}: {len(self._replied & asked)} of {len(asked)} replies"
        missing = sorted(asked - self._replied)
        if not missing:
            return f"{replies}, testing their average"
        named = ", ".join(map(one_line, missing[:NAMED])) + " ..." * (len(missing) > NAMED)
        return f"{replies}, waiting for {named}"

    def states(self) -> dict[str, str]:
        """Return what each client that is there does, by its name."""
        with self._lock:
            return {name: self._state(name) for name in self._connected}

    @property
    def _in_round(self) -> set[str]:
        return self._asked or self._connected

    def _state(self, name: str) -> str:
        if self._done or not self.number or name not in self._in_round:
            return "connected"
        return "replied" if name in self._replied else "training"
