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
    """One object for the filters of both ways, which a job's config makes apart from each other.

    It is of the engine that runs the job here: contexts are copied, and written to disk.
    """

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, T] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, fl_ctx: FLContext, make: Callable[[], T]) -> T:
        """Return what ``make`` has returned for this engine; it is called once."""
        engine = fl_ctx.get_engine()
        with self._lock:
            if engine not in self._of:
                self._of[engine] = make()
            return self._of[engine]


class TaskContext(NamedTuple):
    """What a filter is asked about.

    Attributes:
        name: of the task, such as "train".
        task_id: of this client's task.
        number: of the round, None where the workflow has none.
        fl_ctx: what else NVFlare says.
    """

    name: str
    task_id: str
    number: int | None
    fl_ctx: FLContext


class ModelFilter(DXOFilter):  # type: ignore[misc]  # NVFlare ships no type information
    """A filter of both ways, for DXOs that are one model; collections pass as they are."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=KINDS, data_kinds_to_filter=KINDS)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Filter what holds a model, and leave alone what does not."""
        dxo = shareable.get("DXO")
        kind = dxo.get("kind") if isinstance(dxo, dict) else None
        return super().process(shareable, fl_ctx) if kind in KINDS else shareable

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Compress or decompress a DXO; None leaves it as it is."""
        number = shareable.get_header(AppConstants.CURRENT_ROUND)
        task = TaskContext(
            fl_ctx.get_prop(FLContextKey.TASK_NAME, ""),
            fl_ctx.get_prop(FLContextKey.TASK_ID, ""),
            number if isinstance(number, int) else None,
            fl_ctx,
        )
        out = fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT
        return self.going_out(dxo, task) if out else self.coming_in(dxo, task)

    @abstractmethod
    def going_out(self, dxo: DXO, task: TaskContext) -> DXO | None:
        """Compress a DXO on its way out."""

    @abstractmethod
    def coming_in(self, dxo: DXO, task: TaskContext) -> DXO | None:
        """Decompress a DXO on its way in."""
