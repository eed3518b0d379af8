"""Training that begins ahead: with what a client has not sent yet added to the model.

With m the model that was sent and r the residual of n rounds ago, training begins with
m + decay^n r, and the step is what it moves from there. The sum of m and that step is coded with
error feedback as ever, so that the same residual goes along with it. Only the beginning is another:
a client does not learn once more what it has learned and not sent, and what was left out costs
less. So CSER (Xie et al., NeurIPS 2020) adds errors to the local model at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsz.arrays import NDArray, wide
from fedsz.codecs.base import Residual
from fedsz.methods import parts_of
from fedsz.methods.base import is_finite
from fedsz.methods.feedback import RESIDUAL, Feedback
from fedsz.methods.state import by_tensor, path_of
from fedsz.update.config import CompressionConfig
from fedsz.update.lossy import narrow
from fedsz.update.reference import Reference


def ahead_of(
    sent: Reference, kept: Mapping[str, NDArray], age: int, config: CompressionConfig
) -> dict[str, NDArray]:
    """Return the tensors that training begins with elsewhere than with the model that was sent.

    Args:
        sent: the model.
        kept: of the round before, as a client's state has it.
        age: of that, in rounds; at least 1.
        config: as the server has told it; with nothing to begin ahead by, there are no tensors.

    Returns:
        By name, in the tensors' own dtypes; those whose sum is not finite are left out.
    """
    if not config.begins_ahead:
        return {}
    residuals, decay = kept, config.decay
    if config.chain is not None:
        (decay,) = (p.decay for p in parts_of(config.chain) if isinstance(p, Feedback))
        paths = {name: (s, path_of(s, RESIDUAL)) for name, s in by_tensor(kept).items()}
        residuals = {name: s[path] for name, (s, path) in paths.items() if path is not None}
    found = {}
    for name, r in residuals.items():
        x = sent.arrays.get(name)
        if x is None or r.shape != x.shape or r.dtype not in (x.dtype, wide(x.dtype)):
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            start = narrow(np.asarray(Residual(r, decay**age).added_to(x)), x.dtype)
        if is_finite(start):
            found[name] = start
    return found


def less_head_start(trained: Mapping[str, NDArray], sent: Reference) -> Mapping[str, NDArray]:
    """Return what training would have made if it had moved as far, and had begun with ``sent``.

    Args:
        trained: after training that began with ``sent.begun``.
        sent: the model; it has all of ``trained``, in the same dtypes and shapes.
    """
    if not sent.begun:
        return trained
    found = dict(trained)
    for name in sent.begun.keys() & trained.keys():
        x, start = trained[name], sent.begun[name]
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.subtract(x, start, dtype=wide(x.dtype))
            moved += sent.arrays[name]
        found[name] = narrow(moved, x.dtype)
    return found
