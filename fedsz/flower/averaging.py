"""Whether a strategy averages, so that the mean of all updates does for each of them."""

from __future__ import annotations

from types import FrameType, FunctionType
from typing import Any, Final

from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy import Strategy

from fedsz.flower.fedbuff import FedBuff
from fedsz.flower.fetchsgd import FetchSgd
from fedsz.flower.strategy import StreamingFedAvg

_METHOD: Final = "aggregate_train"


def not_averaging(frame: FrameType | None) -> str:
    """Return the name of a strategy that calls, and may look at single updates; "" if none does."""
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Strategy) and (_METHOD in vars(caller) or not averages(type(caller))):
            return type(caller).__name__
        frame = frame.f_back
    return ""


def averages(kind: type[Any]) -> bool:
    """Say whether a strategy's replies go into FedAvg's mean.

    It has FedAvg's ``aggregate_train``, or one of its own that calls ``super()``'s, as FedAdam and
    strategies that log or save do. What else such a method does with replies nobody sees from here:
    one that chooses among them by their values finds all of them equal.
    """
    if issubclass(kind, FedBuff | FetchSgd):
        return False
    for one in kind.__mro__:
        if one in (FedAvg, StreamingFedAvg):
            return True
        if (method := vars(one).get(_METHOD)) is not None and not _calls_super(method):
            return False
    return False


def _calls_super(method: object) -> bool:
    """Say whether the code of a method has ``super().aggregate_train``."""
    if not isinstance(method, FunctionType):
        return False
    code = method.__code__
    return {"super", _METHOD} <= {*code.co_names} and "__class__" in code.co_freevars
