"""What a server's differential privacy asks of clients, and how updates are sent under it.

A client that clips its update fills the norm already. What error feedback adds is clipped off, with
as much of the update: feedback costs accuracy there, and bytes. So nothing is fed back, and what is
left out is lost: `auto` keeps to a finer bound. docs/flower.md has the measurement.

One that adds noise feeds back what compression leaves of that, and has all of its own noise in it,
which others' has not made smaller. Training that began ahead by it would begin far from the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from flwr.app import ConfigRecord, RecordDict

from fedsz.core.ahead import not_ahead
from fedsz.core.settings import DELTA, DELTA_EF, Settings
from fedsz.flower.local_noise import LocalNoise
from fedsz.flower_compat import KEY_CLIPPING_NORM, records_in

# Of Flower's wrappers, and of the older DPFedAvgFixed and DPFedAvgAdaptive.
_NORMS: Final = (KEY_CLIPPING_NORM, "dpfedavg_clip_norm")
_NOISE: Final = "dpfedavg_noise_stddev"  # that clients add once they have clipped

MOST_STEPS: Final = 0.5  # steps: the most that a policy's bound is then

# Said once in a run, with the norm.
CLIPPED_AGAIN: Final = (
    "updates keep to clipping_norm=%g, as differential privacy asks: each is clipped to it once it"
    " is decoded, and update='delta+ef' feeds nothing back"
)


def clipping_norm(content: Mapping[str, Any]) -> float | None:
    """Return the norm that clients are to clip their updates to; None if the content says none.

    It is None, too, where clients add noise to what they have clipped: that is not to be clipped.
    """
    norms = []
    for record in content.values():
        if isinstance(record, ConfigRecord) and _NOISE not in record:
            norms += [record[key] for key in _NORMS if key in record]
    known = [float(x) for x in norms if isinstance(x, int | float) and 0 < x < math.inf]
    return min(known, default=None)


def adds_noise(content: RecordDict) -> bool:
    """Say whether a training message asks a client for noise, or for a share of it."""
    legacy = any(_NOISE in record for record in records_in(content, ConfigRecord).values())
    return legacy or LocalNoise.is_asked(content)


def under_privacy(config: Settings, base: Settings, content: RecordDict) -> Settings:
    """Return how updates are sent by clients that a training message asks to clip, or to add noise.

    ``base`` is what the user has named.
    """
    if clipping_norm(content) is not None:
        return without_feedback(config, base).not_staggered
    return not_ahead(config).not_staggered if adds_noise(content) else config


def without_feedback(config: Settings, base: Settings) -> Settings:
    """Return how updates are sent that clients clip; ``base`` is what the user has named.

    A chain keeps the feedback that it names, and a bound that was named holds as it is. One that
    the policy chose is of what it stands for: differences with feedback, in a basis.
    """
    if config.update != base.update:
        config = config.without_history
    if config.update != DELTA_EF:
        return config.replace(ahead=False)
    bound = config.bound
    chosen = config.error_bound != base.error_bound
    if chosen and bound.kind == "step" and bound.value > MOST_STEPS:
        config = config.replace(error_bound=f"step:{MOST_STEPS:g}")
    if config.codec != base.codec:  # what shrinks leaves to later rounds what would be lost here
        config = config.replace(codec=config.lossy_codec.told)
    return config.replace(update=DELTA, ahead=False)
