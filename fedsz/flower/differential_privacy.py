"""What a server's differential privacy asks of clients, as its training messages say it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from flwr.app import ConfigRecord

from fedsz.flower_compat import KEY_CLIPPING_NORM

# Of Flower's wrappers, and of the older DPFedAvgFixed and DPFedAvgAdaptive.
_NORMS: Final = (KEY_CLIPPING_NORM, "dpfedavg_clip_norm")
_NOISE: Final = "dpfedavg_noise_stddev"  # that clients add once they have clipped

# Said once in a run.
CLIPPED_AGAIN: Final = (
    "clients clip their updates for differential privacy; each one is clipped to that norm again"
    " once it is decoded, since error feedback and rounding add to it"
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
