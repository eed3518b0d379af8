"""What a sender keeps of a tensor from one round to the next: a tree, nested as its chain is.

A state has arrays by their names. A wrapper has that of what it stands around under `INNER`, beside
its own arrays, and a chain has that of each part under the part's place. What keeps nothing has no
branch. So parts cannot mistake each other's arrays, however they are combined.

Records are flat: an array is named by its path, with dots in between, a slash, and the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fedsz.arrays import NDArray
from fedsz.methods.base import NOTHING, State

Path = tuple[str, ...]  # the branches that lead to an array, and its name

INNER: Final = "inner"  # the branch of what a wrapper stands around
_BRANCH: Final = "."  # between the branches that lead to an array
_TENSOR: Final = "/"  # and between these and the name of the tensor


def within(state: State) -> State:
    """Return the state of what a wrapper stands around."""
    inner: State = state.get(INNER, NOTHING)
    return inner


def branch(name: str, state: State) -> State:
    """Return a state as a branch of that which it is in; nothing if it is empty."""
    return {name: state} if state else NOTHING


def leaves(state: State, above: Path = ()) -> Iterator[tuple[Path, NDArray]]:
    """Yield the arrays of a state, with their paths."""
    for name, x in state.items():
        if isinstance(x, Mapping):
            yield from leaves(x, (*above, name))
        else:
            yield (*above, name), x


def flat(states: Mapping[str, State]) -> dict[str, NDArray]:
    """Return the arrays of all tensors' states as a record has them."""
    return {
        f"{_BRANCH.join(path)}{_TENSOR}{tensor}": x
        for tensor, state in states.items()
        for path, x in leaves(state)
    }


def nested(record: Mapping[str, NDArray]) -> dict[str, State]:
    """Return the state of each tensor, given what `flat` returned."""
    states: dict[str, Any] = {}
    for name, x in record.items():
        path, _, tensor = name.partition(_TENSOR)
        *branches, last = path.split(_BRANCH)
        at = states.setdefault(tensor, {})
        for branch_ in branches:
            if not isinstance(at.get(branch_), dict):
                at[branch_] = {}
            at = at[branch_]
        at[last] = x
    return states


def found(state: State, name: str) -> NDArray | None:
    """Return the array of this name, in whichever branch it is; None if there is none."""
    return next((x for path, x in leaves(state) if path[-1] == name), None)


def replaced(state: State, name: str, array: NDArray) -> State:
    """Return a state whose arrays of this name, in whichever branch, are another."""
    return {
        key: replaced(x, name, array) if isinstance(x, Mapping) else array if key == name else x
        for key, x in state.items()
    }


def restored(state: State, before: State, name: str) -> State:
    """Return a state in which the branch that has the array of this name is as it was before."""
    if name in before:
        return before
    return {
        key: restored(x, before.get(key, NOTHING), name) if isinstance(x, Mapping) else x
        for key, x in state.items()
    }


def misfit(kept: State, needed: State) -> str:
    """Return where a state differs from one of the right shapes and dtypes; "" if it fits."""
    have, want = (
        {path: f"{x.dtype} {x.shape}" for path, x in leaves(state)} for state in (kept, needed)
    )
    for path in sorted(have.keys() | want.keys()):
        has, needs = have.get(path, "none"), want.get(path, "none")
        if has != needs:
            return f"{'.'.join(path)} is {has} and must be {needs}"
    return ""
