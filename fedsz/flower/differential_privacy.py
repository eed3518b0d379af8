"""What a server's differential privacy asks of clients, and how updates are sent under it.

A client that clips its update fills the norm already. What error feedback adds is clipped off, with
as much of the update: feedback costs accuracy there, and bytes. So nothing is fed back, and what is
left out is lost: `auto` keeps to a finer bound. docs/flower.md has the measurement.

One that adds noise feeds back what compression leaves of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from flwr.app import ConfigRecord, RecordDict

from fedsz.core.settings import DELTA, DELTA_EF, Settings
from fedsz.flower_compat import KEY_CLIPPING_NORM, records_in

# Of Flower's wrappers, and of the older DPFedAvgFixed and DPFedAvgAdaptive.
_NORMS: Final = (KEY_CLIPPING_NORM, "dpfedavg_clip_norm")
_NOISE: Final = "dpfedavg_noise_stddev"  # that clients add once they have clipped

# Of a ConfigRecord that asks clients for noise: the norm, and the noise's deviation in norms.
NOISE_NORM: Final = "fedsz.noise.clipping-norm"
NOISE_MULTIPLIER: Final = "fedsz.noise.multiplier"


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


def asks_noise(content: RecordDict) -> bool:
    """Say whether a message asks for fedsz's noise, of any size."""
    return any(NOISE_NORM in config for config in records_in(content, ConfigRecord).values())


def adds_noise(content: RecordDict) -> bool:
    """Say whether a training message asks a client for noise, or for a share of it."""
    legacy = any(_NOISE in record for record in records_in(content, ConfigRecord).values())
    return legacy or asks_noise(content)


def is_private(content: RecordDict) -> bool:
    """Say whether a training message asks a client to clip its update, or to add noise."""
    return clipping_norm(content) is not None or adds_noise(content)


def under_privacy(settings: Settings, base: Settings, content: RecordDict) -> Settings:
    """Return how updates are sent that a training message asks clients to clip.

    Error feedback would add what is clipped off again. A pipeline keeps the feedback that it names,
    and a bound that the user has named holds as it is.

    Args:
        settings: of the round.
        base: what the user has named.
        content: of the message.
    """
    if clipping_norm(content) is None or settings.update != DELTA_EF:
        return settings
    if settings.error_bound == base.error_bound:
        return settings.replace(update=DELTA)
    return settings.without_feedback
