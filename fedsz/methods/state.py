"""What a sender keeps of a tensor from one round to the next: arrays, by their paths.

A wrapper's own arrays have plain names. Those of what it stands around have `INNER` and a dot
before them, and those of a part of a chain the part's place. So parts cannot mistake each other's
arrays, however they are combined. In records, a slash and the tensor's name follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedsz.arrays import NDArray
from fedsz.methods.base import State

INNER: Final = "inner"  # the branch of what a wrapper stands around
SHIFT: Final = "shift"  # what a `Difference` has learnt, beside all of these
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
    """Return the state of each tensor, given what `flat` returned."""
    states: dict[str, dict[str, NDArray]] = {}
    for key, x in record.items():
        path, _, name = key.partition(_TENSOR)
        states.setdefault(name, {})[path] = x
    return dict(states)


def tensor_of(key: str) -> str:
    """Return the tensor of an array of what `flat` returned."""
    return key.partition(_TENSOR)[2]


def path_of(state: State, name: str) -> str | None:
    """Return the path of the array of this name, in whichever branch; None if there is none."""
    return next((path for path in state if path.rpartition(_BRANCH)[2] == name), None)


def restored(state: State, before: State, name: str) -> State:
    """Return a state in which the branch that has the array of this name is as it was before."""
    path = path_of(state, name)
    if path is None:
        return state
    start = path.removesuffix(name)
    return {**state, **{p: x for p, x in before.items() if p.startswith(start)}}


def misfit(kept: State, needed: State) -> str:
    """Return where a state differs from one of the right shapes and dtypes; "" if it fits."""
    have, want = (
        {path: f"{x.dtype} {x.shape}" for path, x in state.items()} for state in (kept, needed)
    )
    for path in sorted(have.keys() | want.keys()):
        has, needs = have.get(path, "none"), want.get(path, "none")
        if has != needs:
            return f"{path} is {has} and must be {needs}"
    return ""
