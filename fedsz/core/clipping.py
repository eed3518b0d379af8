"""Steps that are scaled down to a norm, which holds in float64 once they are rounded."""

from __future__ import annotations

from typing import Final

import numpy as np

from fedsz.arrays import NDArray, chunks, saturate

# By how much less a norm is asked for than it may be: more than sums in float64 lose.
MARGIN: Final = 1e-9


def scaled_step(x: NDArray, start: NDArray, scale: float) -> NDArray:
    """Return start + scale * (x - start) in the dtype of ``x``, each element between the two.

    The norm of its step is at most ``scale`` times that of the step of ``x``, but for what float64
    loses. Where rounding to nearest makes it larger, the elements that it has moved furthest are
    rounded towards ``start``, as many as it takes. What is not finite in ``start`` stays.

    Args:
        x: of a floating or complex dtype.
        start: of that dtype and shape.
        scale: 0 to 1.
    """
    y = np.empty(x.shape, x.dtype)
    real = parts(x), parts(start)
    out = y.reshape(-1).view(real[0].dtype)
    for here in chunks(out.size):
        out[here] = _scaled(real[0][here], real[1][here], scale)
    return y


def parts(x: NDArray) -> NDArray:
    """Return a flat view of floats; of complex numbers, of their real and imaginary parts."""
    flat = np.ascontiguousarray(x).reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def _scaled(x: NDArray, start: NDArray, scale: float) -> NDArray:
    there = np.isfinite(start)
    base = np.where(there, start, 0).astype(np.float64)
    step = np.where(there, x, 0).astype(np.float64) - base
    wanted = base + scale * step
    y = wanted.astype(x.dtype)
    moved = y.astype(np.float64) - base
    excess = np.vdot(moved, moved) - scale**2 * np.vdot(step, step)
    if excess > 0:
        beyond = np.flatnonzero(np.abs(moved) > scale * np.abs(step))
        nearer = np.nextafter(y[beyond], start[beyond])
        less = nearer.astype(np.float64) - base[beyond]
        rounded = np.abs(moved[beyond] - scale * step[beyond]) / np.abs(moved[beyond] - less)
        order = np.argsort(-rounded, kind="stable")
        gained = np.cumsum((moved[beyond] ** 2 - less**2)[order])
        few = order[: np.searchsorted(gained, excess) + 1]
        y[beyond[few]] = nearer[few]
    np.copyto(y, x, where=~there)
    return y


def add_step(x: NDArray, start: NDArray, sums: NDArray) -> None:
    """Add x - start to flat sums in float64, element by element of `parts`.

    Where ``start`` is not finite, nothing is added: what stands there stays, such as a mask.
    """
    flat, base = parts(x), parts(start)
    for here in chunks(flat.size):
        there = np.isfinite(base[here])
        step = flat[here].astype(np.float64) - np.where(there, base[here], 0).astype(np.float64)
        sums[here] += np.where(there, step, 0)


def stepped(start: NDArray, step: NDArray) -> NDArray:
    """Return start + step in the dtype of ``start``, and within its range.

    Args:
        start: of a floating or complex dtype; where it is not finite, it stays.
        step: flat, in float64, of the elements of ``start``'s `parts`.
    """
    out = np.array(start, order="C")
    flat = parts(out)
    for here in chunks(flat.size):
        moved = flat[here].astype(np.float64) + step[here]
        saturate(moved, flat.dtype)
        np.copyto(flat[here], moved.astype(flat.dtype), where=np.isfinite(flat[here]))
    return out
