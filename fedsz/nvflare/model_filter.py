"""What the filters of both ends have in common."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

KINDS: Final = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]

T = TypeVar("T")


class Shared(Generic[T]):
    """Objects for the filters of both ways, which a job's config makes apart from each other.

    They are of the engine that runs the job here: contexts are copied, and written to disk.
    """

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, dict[str, T]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, fl_ctx: FLContext, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` has returned for this engine and name; it is called once."""
        with self._lock:
            known = self._of.setdefault(fl_ctx.get_engine(), {})
            if name not in known:
                known[name] = make()
            return known[name]

    def take(self, fl_ctx: FLContext) -> list[T]:
        """Return the objects of this engine, and forget them."""
        with self._lock:
            return list(self._of.pop(fl_ctx.get_engine(), {}).values())


class Task(NamedTuple):
    """A task of one client: its name, its id, the number of its round if there is one."""

    name: str
    id: str
    number: int | None = None


class ModelFilter(DXOFilter):  # type: ignore[misc]  # NVFlare ships no type information
    """A filter of both ways, for DXOs that are one model; collections pass as they are."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=KINDS, data_kinds_to_filter=KINDS)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Compress or decompress a DXO; None leaves it as it is."""
        if shareable["DXO"]["kind"] not in KINDS:
            return None
        name, task_id = (
            fl_ctx.get_prop(p, "") for p in (FLContextKey.TASK_NAME, FLContextKey.TASK_ID)
        )
        number = shareable.get_header(AppConstants.CURRENT_ROUND)
        task = Task(name, task_id, number if isinstance(number, int) else None)
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT:
            return self.going_out(dxo, task, fl_ctx)
        return self.coming_in(dxo, task, fl_ctx)

    @abstractmethod
    def going_out(self, dxo: DXO, task: Task, fl_ctx: FLContext) -> DXO | None:
        """Compress a DXO on its way out."""

    @abstractmethod
    def coming_in(self, dxo: DXO, task: Task, fl_ctx: FLContext) -> DXO | None:
        """Decompress a DXO on its way in."""
