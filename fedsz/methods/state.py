"""What a sender keeps of a tensor from one round to the next: arrays, by their paths.

A wrapper's own arrays have plain names. Those of its inner transform have `INNER` and a dot before
them if the wrapper keeps any, and those of a stage its place in the chain. So they cannot be
mistaken for each other, in any combination. In records, a slash and the tensor's name follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedsz.arrays import NDArray
from fedsz.methods.base import State

INNER: Final = "inner"
_BRANCH: Final = "."
_TENSOR: Final = "/"


def within(state: State, name: str = INNER) -> State:
    """Return the branch of this name as a state of its own."""
    start = name + _BRANCH
    return {path.removeprefix(start): x for path, x in state.items() if path.startswith(start)}


def branch(state: State, name: str = INNER) -> State:
    """Return a state as the branch of this name of another."""
    return {f"{name}{_BRANCH}{path}": x for path, x in state.items()}


def flat(states: Mapping[str, State]) -> dict[str, NDArray]:
    """Return the arrays of all tensors' states as a record has them."""
    return {f"{path}{_TENSOR}{name}": x for name, s in states.items() for path, x in s.items()}


def by_tensor(record: Mapping[str, NDArray]) -> dict[str, State]:
    """Return the state of each tensor, given a record of `flat`."""
    states: dict[str, dict[str, NDArray]] = {}
    for key, x in record.items():
        path, _, name = key.partition(_TENSOR)
        states.setdefault(name, {})[path] = x
    return dict(states)


def tensor_of(key: str) -> str:
    """Return the tensor of an array in a record of `flat`."""
    return key.partition(_TENSOR)[2]


def misfit(earlier: State, needed: State) -> str:
    """Return where a state differs from one of the right shapes and dtypes; "" if it fits."""
    have, want = (
        {path: f"{x.dtype} {x.shape}" for path, x in state.items()} for state in (earlier, needed)
    )
    for path in sorted(have.keys() | want.keys()):
        has, needs = have.get(path, "none"), want.get(path, "none")
        if has != needs:
            return f"{path} is {has} and must be {needs}"
    return ""
