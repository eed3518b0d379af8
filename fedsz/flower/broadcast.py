"""The model on its way to the clients: packed once a round, and only what they lack of it.

As in a film, there are key frames, which hold the model, and differences from the model before. A
client that holds an earlier one is sent the differences since; one that holds none, or too old a
one, is sent the key frame and all differences, and once these add up to the size of the model, the
model without loss. So all clients of a round hold the same model, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fedsz.arrays import Layout, NDArray
from fedsz.bounds import ErrorBound
from fedsz.update.compress import compress_measured
from fedsz.update.config import DELTA, EXACT, CompressionConfig
from fedsz.update.decompress import decompress
from fedsz.update.error_feedback import ErrorFeedback
from fedsz.update.reference import Reference

# A model that nobody holds yet is sent as finely as 8 bits a weight would: who starts from trained
# weights would lose them at the bounds that differences do with.
FIRST_BOUND: Final = str(ErrorBound.rel(2e-3))

# A chain of differences longer than this share of the model is not kept.
LONGEST: Final = 0.9


@dataclass(frozen=True)
class Step:
    """A stream, and the digest of the model that its receiver then holds."""

    stream: bytes
    digest: bytes
    key_frame: bool


@dataclass(frozen=True)
class BroadcastState:
    """What a broadcast within a bound remembers.

    Attributes:
        model: what clients hold that have received the last one.
        residual: by tensor, what the last one left out.
        given: the digest of the model that was last put.
        steps: the key frame and the differences since, or the last of these.
    """

    model: Reference
    residual: Mapping[str, NDArray]
    given: bytes
    steps: tuple[Step, ...]


class Broadcast:
    """One model as the clients of a run hold it.

    Args:
        config: how it is packed, within the error of its downlink.
        feedback: whether what one broadcast leaves out goes into the next.

    Attributes:
        model: what clients hold that have received the last broadcast; None where that was exact
            and nobody asked for a reference.
        raw_bytes: its size.
    """

    def __init__(self, config: CompressionConfig, *, feedback: bool = True) -> None:
        self.model: Reference | None = None
        self.raw_bytes = 0
        self._feedback = feedback
        self._residual: dict[str, NDArray] = {}
        self._given = b""  # the digest of what was last put
        self._steps: list[Step] = []
        self._whole: bytes | None = None  # the model without loss, once somebody needs it
        self.steer(config)

    def steer(self, config: CompressionConfig) -> None:
        """Pack what is put from now on in another way."""
        self._exactly = config.replace(codec=config.lossless, factors={})
        self._within = None
        if config.downlink != EXACT:
            # Whatever clients send, a broadcast is of differences, and its bound may be of a step.
            self._within = config.replace(error_bound=config.downlink, update=DELTA, factors={})

    def put(self, arrays: Mapping[str, NDArray], *, reference: bool) -> None:
        """Take the model that clients are to hold, or as much of it as the bound lets through.

        ``reference`` says whether `model` is needed although the broadcast is exact.
        """
        if self._within is None:
            self._steps, self._residual, self._given = [], {}, b""
            self.model = Reference(arrays) if reference else None
            source = self.model.arrays if self.model else arrays
            self._whole, report = compress_measured(source, self._exactly)
            self.raw_bytes = report.raw_bytes
            return
        given = Reference(arrays)
        if given.digest == self._given:
            return  # sent to be tested and again to be trained, or a round had no replies
        self._given, self._whole = given.digest, None
        self.raw_bytes = sum(x.nbytes for x in given.arrays.values())
        fits = self.model is not None and self.model.fits(Layout.of(given.arrays))
        before = self.model if fits else None
        self._add_step(ErrorFeedback(given.arrays, self._residual), self._within, before)

    def _add_step(
        self, meant: ErrorFeedback, config: CompressionConfig, before: Reference | None
    ) -> None:
        if before is None:
            self._steps = []
            config = config.replace(error_bound=FIRST_BOUND)
        bounds = meant.bounds(config, before) if before else {}
        stream, _ = compress_measured(meant, config, before, bounds=bounds)
        decoded = decompress(stream, reference=before, as_numpy=True)
        self._residual = meant.left_out(decoded) if self._feedback else {}
        self.model = Reference(decoded)
        self._steps.append(Step(stream, self.model.digest, before is None))
        while sum(len(step.stream) for step in self._steps) > LONGEST * self.raw_bytes:
            del self._steps[0]

    def state(self) -> BroadcastState | None:
        """Return what the next broadcast depends on; None if it depends on nothing."""
        if self.exact or self.model is None:
            return None
        return BroadcastState(self.model, self._residual, self._given, tuple(self._steps))

    def restore(self, state: BroadcastState) -> None:
        """Go on from what `state` returned, also in another process."""
        self.model = state.model
        self.raw_bytes = sum(x.nbytes for x in state.model.arrays.values())
        self._residual, self._given = dict(state.residual), state.given
        self._steps = list(state.steps)

    @property
    def exact(self) -> bool:
        """Whether clients are sent the model without error, and need not keep it."""
        return self._within is None

    def pack_away(self) -> None:
        """Free the model as it is packed without loss; where it can be had again."""
        self._whole = None

    def streams(self, held: bytes) -> list[bytes]:
        """Return what a client needs, in this order, that holds model ``held``, a digest or b""."""
        for i, step in enumerate(self._steps):
            if step.digest == held:
                return [later.stream for later in self._steps[i + 1 :]]
        if self._steps and self._steps[0].key_frame:
            return [step.stream for step in self._steps]
        if self._whole is None:
            assert self.model is not None
            self._whole, _ = compress_measured(self.model.arrays, self._exactly)
        return [self._whole]
