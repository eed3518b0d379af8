"""Tensors that are coded side by side, on as many threads as the user allows.

Whoever a user tells the number sets it with `allow`, and what codes tensors asks for it. It is 1
where nobody has set it, and on the threads that `side_by_side` starts. No thread outlives a call,
so a forked process lacks none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from typing import Final, TypeVar

from fedsz.errors import ConfigError
from fedsz.system import cores

MOST: Final = 1024
WORTH: Final = 1 << 18  # bytes of an item, from which on it takes longer than to start a thread
MANY: Final = 1 << 20  # elements of an array, from which on native code splits it

_allowed: ContextVar[int] = ContextVar("fedsz.threads", default=1)

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def allow(threads: int | None) -> Iterator[None]:
    """Let all that is called inside use up to so many threads at a time.

    Args:
        threads: 0 for one on each core; None for as many as the caller may use.

    Raises:
        ConfigError: the number is negative or above `MOST`.
    """
    if threads is None:
        threads = allowed()
    if not 0 <= threads <= MOST:
        raise ConfigError(f"threads must be from 0 to {MOST}, got {threads}")
    token = _allowed.set(threads or min(cores(), MOST))
    try:
        yield
    finally:
        _allowed.reset(token)


def allowed() -> int:
    """Return how many threads the caller may use, its own among them."""
    return _allowed.get()


def threads_for(size: int) -> int:
    """Return how many threads native code may use for an array of so many elements."""
    return allowed() if size >= MANY else 1


def side_by_side(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    size: Callable[[Item], int],
    total: int,
) -> list[Result]:
    """Return ``work`` of each item, in their order, computed on as many threads as are allowed.

    If the system starts no thread, those that run do its share. Of several exceptions, that of the
    first item is raised, once no thread works any more.

    Args:
        work: of one item; called on several threads at once, each of which is allowed one thread.
            An item that has more than a thread's share of all bytes comes last, when all threads
            are allowed to it.
        items: taken one at a time, when a thread is free for it.
        size: of an item, in bytes.
        total: sum of the sizes of all items.
    """
    threads = allowed()
    if threads == 1:
        return [work(item) for item in items]
    source, positions, guard = iter(items), count(), threading.Lock()
    large: dict[int, Item] = {}
    results: dict[int, Result] = {}
    failures: dict[int, BaseException] = {}
    helpers: list[threading.Thread] = []

    def take() -> Item:
        item = next(source)
        if size(item) >= WORTH and len(helpers) < threads - 1:
            helper = threading.Thread(target=work_off, daemon=True)
            with suppress(RuntimeError):  # the system has no more of them
                helper.start()
                helpers.append(helper)
        return item

    def work_off() -> None:
        i = -1
        while not failures:
            try:
                with guard:
                    i = next(positions)
                    item = take()
                if threads * size(item) > total:
                    large[i] = item
                else:
                    results[i] = work(item)
            except StopIteration:
                return
            except BaseException as err:  # raised below
                failures[i] = err

    with allow(1):
        work_off()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[min(failures)]
    results |= {i: work(item) for i, item in large.items()}
    return [results[i] for i in sorted(results)]
