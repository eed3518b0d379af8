"""Training that begins ahead: with part of what a client has not sent yet added to the model.

With m the model that was sent and r the residual of n rounds ago, training begins with
m + h decay^n r, and the step is what it moves from there. The sum of m and that step is coded with
error feedback as ever, so that all of the residual goes along with it. Only the beginning is
another: a client does not learn once more what it has learned and not sent, and what was left out
costs less. CSER (Xie et al., NeurIPS 2020) adds all errors to the local model. But each client
lacks what others have not sent, and its own is off the mean of the models that others begin with:
with bounds of more than a step, all of it costs more than none. With fine ones, as in first rounds,
in which clients agree, less than all of it does. So h falls with the bound; see `head_start`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from fedsz.arrays import LOSSY_DTYPES, NDArray
from fedsz.bounds import ErrorBound
from fedsz.codecs.base import Residual
from fedsz.codecs.spread import energy, energy_between
from fedsz.codecs.uniform import WIDE
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.methods.base import is_finite
from fedsz.methods.feedback import RESIDUAL
from fedsz.methods.state import by_tensor, path_of

# What is added of a residual, times the bound in steps; docs/results/savings.md has what others
# cost. Where bounds are of something else, it is as at one of `TYPICAL` steps.
REACH: Final = 0.72
TYPICAL: Final = 1.8
WIDER: Final = 1.8  # times as wide as without a head start: bounds of updates
ALIKE: Final = 0.5  # of a step: bounds up to here cost as little without one, or without feedback
NEAR: Final = 0.5  # times as far from 0 as from where training began, at most: what is a step
LOOK: Final = 1 << 16  # elements of a tensor that tell


def head_start(bound: ErrorBound) -> float:
    """Return how much of a residual training begins with, in (0, 1], at the bound of a round."""
    steps = bound.value if bound.kind == "step" else TYPICAL
    return min(1.0, REACH / steps)


def without_head_start(bound: ErrorBound) -> float:
    """Return what the bound of a round is multiplied with where training begins with the model."""
    if bound.kind != "step":
        return 1 / WIDER
    return max(1 / WIDER, min(1.0, ALIKE / bound.value))


def not_ahead(config: Settings) -> Settings:
    """Return a config for clients that begin with the model: bounds for others are too wide."""
    if not config.ahead:
        return config
    bound = config.bound.scaled(without_head_start(config.bound))
    return config.replace(ahead=False, error_bound=str(bound))


def finer(
    arrays: Mapping[str, NDArray], config: Settings, *, forgets: bool = False
) -> dict[str, float]:
    """Return what bounds are multiplied with, of tensors whose residuals are of less use.

    Args:
        arrays: to be sent.
        config: as the server has told it; bounds that lean on no head start stay as they are.
        forgets: whether this client has lost what it kept, and may lose again what it leaves out
            now, within bounds of steps. Else they are those that never have a head start.
    """
    if not config.begins_ahead:
        return {}
    bound = config.bound
    factor = min(1.0, ALIKE / bound.value) if forgets else without_head_start(bound)
    return {
        name: factor
        for name, x in arrays.items()
        if x.dtype in LOSSY_DTYPES and (forgets or x.dtype not in WIDE) and factor < 1
    }


def ahead_of(
    sent: Reference, kept: Mapping[str, NDArray], age: int, config: Settings
) -> dict[str, NDArray]:
    """Return the tensors that training begins with elsewhere than with the model that was sent.

    Args:
        sent: the model.
        kept: of the round before, as a client's state has it.
        age: of that, in rounds; at least 1.
        config: as the server has told it; with nothing to begin ahead by, there are no tensors.

    Returns:
        By name, in the tensors' own dtypes; those whose sum is not finite are left out, and those
        in half precision, which would round off of it what nobody keeps.
    """
    if not config.begins_ahead:
        return {}
    residuals, weight = kept, head_start(config.bound)
    if config.chain is None:
        weight *= config.decay**age
    else:  # chains that begin ahead have no decay
        paths = {name: (s, path_of(s, RESIDUAL)) for name, s in by_tensor(kept).items()}
        residuals = {name: s[path] for name, (s, path) in paths.items() if path is not None}
    found = {}
    for name, r in residuals.items():
        x = sent.arrays.get(name)
        if x is None or x.dtype not in WIDE or (r.shape, r.dtype) != (x.shape, x.dtype):
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            start = np.asarray(Residual(r, weight).added_to(x))
        if is_finite(start):
            found[name] = start
    return found


def is_step(trained: Mapping[str, NDArray], sent: Reference) -> bool:
    """Say whether an app has replied with a step instead of a model: what is so much nearer to 0.

    Args:
        trained: what it has replied.
        sent: the model; it has all of ``trained``, in the same dtypes and shapes.
    """
    size = distance = 0.0
    for name, x in trained.items():
        if x.dtype in LOSSY_DTYPES:
            start = sent.begun.get(name, sent.arrays[name])
            some, of_start = (y.reshape(-1)[:LOOK] for y in (x, start))
            size += energy(some)
            distance += energy_between(some, of_start)
    return size < NEAR**2 * distance


def less_head_start(trained: Mapping[str, NDArray], sent: Reference) -> Mapping[str, NDArray]:
    """Return what training would have made if it had moved as far, and had begun with ``sent``.

    Args:
        trained: after training that began with ``sent.begun``.
        sent: the model; it has all of ``trained``, in the same dtypes and shapes.

    Returns:
        A step as it is: it is one from the beginning.
    """
    if not sent.begun or is_step(trained, sent):
        return trained
    found = dict(trained)
    for name in sent.begun.keys() & trained.keys():
        with np.errstate(over="ignore", invalid="ignore"):
            found[name] = np.asarray(trained[name] - sent.begun[name]) + sent.arrays[name]
    return found
