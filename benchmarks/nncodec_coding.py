"""What clients send through NNCodec, and NNCodec itself, in the process that codes it.

``nncodec_rounds.py`` is what runs; this knows nothing of federations.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import load, save

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.core.settings import DELTA_EF, WEIGHTS
from fedsz.core.settings import Settings as Compression
from fedsz.errors import CodecError, ConfigError

STEP_BYTES = 4  # of a step that a bound makes: a float32 for each tensor


@dataclass(frozen=True)
class Settings:
    """NNCodec's, with its names and its defaults for federated learning."""

    qp: int = -26
    nonweight_qp: int = -75
    sparsity: float = 0.6
    struct_spars_factor: float = 0.9
    tca: bool = True
    use_dq: bool = False
    row_skipping: bool = False
    opt_qp: bool = False

    def __str__(self) -> str:
        return ",".join(f"{name}={value:g}" for name, value in asdict(self).items())

    @classmethod
    def of(cls, text: str) -> Self:
        """Read ``name=value,...``.

        Raises:
            ConfigError: a name that does not exist, or a value that is no number.
        """
        kinds = {name: type(value) for name, value in asdict(cls()).items()}
        given: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in kinds:
                raise ConfigError(f"NNCodec has no {name!r}; have {', '.join(kinds)}")
            try:
                given[name] = kinds[name](float(value))
            except (ValueError, OverflowError):
                raise ConfigError(f"{name} must be a number, got {value!r}") from None
        return cls(**given)


@dataclass(frozen=True)
class Way:
    """What clients send, and how NNCodec codes it."""

    update: str
    settings: Settings
    bound: ErrorBound | None

    @classmethod
    def of(cls, text: str) -> Self:
        """Read ``UPDATE[:SETTINGS][@BOUND]``.

        Raises:
            ConfigError: it is none, or gives both a QP and a bound, which are both steps.
        """
        what, _, bound = text.partition("@")
        update, _, given = what.partition(":")
        Compression(update=update)
        settings = Settings.of(given)
        if not bound:
            return cls(update, settings, None)
        if settings.qp != Settings.qp:
            raise ConfigError(f"{text!r} has two steps: write a qp or a bound")
        return cls(update, replace(settings, qp=0), ErrorBound.of(bound))

    @property
    def codec(self) -> str:
        """What a table calls NNCodec with these settings: its name, and what is no default."""
        default = asdict(Settings())
        told = {k: v for k, v in asdict(self.settings).items() if v != default[k]}
        if self.bound:
            del told["qp"]  # 0, in units of the step
        return "nncodec" + ":" * bool(told) + ",".join(f"{k}={v:g}" for k, v in told.items())

    @property
    def columns(self) -> dict[str, Any]:
        """What a table says of it."""
        return {
            "codec": self.codec,
            "codec_settings": str(self.settings),
            "update": self.update,
            "error_bound": f"{self.bound.kind}:{self.bound.value:g}" if self.bound else None,
            "bound_kind": self.bound.kind if self.bound else None,
            "bound_value": self.bound.value if self.bound else None,
        }


@dataclass
class Tally:
    """What a round's updates took: bytes, seconds, and the largest error over its bound."""

    sent: int = 0
    encode: float = 0.0
    decode: float = 0.0
    max_error: float = 0.0


class Peer:
    """NNCodec in a process of its own, and what the clients of a run remember.

    Args:
        python: NNCodec's interpreter.
        way: how it codes.
    """

    def __init__(self, python: Path, way: Way) -> None:
        self._way = way
        self._residuals: dict[int, dict[str, NDArray]] = {}
        self._tally = Tally()
        settings = {
            **asdict(way.settings),
            "differences": way.update != WEIGHTS,
            "feedback": way.update == DELTA_EF,
        }
        worker = Path(__file__).with_name("nncodec_worker.py")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        self._process = subprocess.Popen(
            [python, worker, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:  # closes its stdin, which ends it
            if process.stdin:
                process.stdin.close()
        self._log.close()

    def take_tally(self) -> Tally:
        """Return what was counted since the last call."""
        tally, self._tally = self._tally, Tally()
        return tally

    def through(
        self, client: int, before: Mapping[str, NDArray], after: Mapping[str, NDArray]
    ) -> dict[str, NDArray]:
        """Return a client's model as the server has it, once NNCodec has decoded the update.

        Args:
            client: which.
            before: the model it was sent.
            after: the model it has trained.

        Raises:
            CodecError: the update holds NaN or infinities, or NNCodec failed.
        """
        coded = [name for name, x in after.items() if x.dtype == np.float32 and x.ndim]
        meant = {name: after[name] for name in coded}
        if self._way.update != WEIGHTS:
            meant = {name: x - before[name] for name, x in meant.items()}
        if self._way.update == DELTA_EF:
            left_out = self._residuals.get(client, {})
            meant = {name: x + left_out.get(name, np.float32(0)) for name, x in meant.items()}
        for name, x in meant.items():
            if not np.isfinite(x).all():
                raise CodecError(f"{name} holds NaN or infinities, which NNCodec cannot code")

        decoded = self._coded(client, meant, self._bounds(meant, after))

        if self._way.update == DELTA_EF:
            self._residuals[client] = {name: x - decoded[name] for name, x in meant.items()}
        if self._way.update != WEIGHTS:
            decoded = {name: before[name] + x for name, x in decoded.items()}
        self._tally.sent += sum(x.nbytes for name, x in after.items() if name not in decoded)
        return {name: decoded.get(name, x) for name, x in after.items()}

    def _bounds(
        self, meant: Mapping[str, NDArray], after: Mapping[str, NDArray]
    ) -> dict[str, float]:
        """Return the bounds of tensors that have one, as `fedsz.compress` means them."""
        rule = self._way.bound
        if rule is None:
            return {}
        of = meant if rule.kind == "std" else after
        bounds = {name: rule.absolute(of[name]) for name, x in meant.items() if x.ndim > 1}
        return {name: bound for name, bound in bounds.items() if bound}  # not of constants

    def _coded(
        self, client: int, meant: dict[str, NDArray], bounds: dict[str, float]
    ) -> dict[str, NDArray]:
        """Return what NNCodec decodes, having counted what it took."""
        scaled = {**meant, **{name: scale(meant[name], 0.5 / b) for name, b in bounds.items()}}
        took, decoded = self._ask(client, scaled)
        for name, bound in bounds.items():
            decoded[name] = scale(decoded[name], 2 * bound)
            error = float(np.abs(decoded[name].astype(np.float64) - meant[name]).max())
            self._tally.max_error = max(self._tally.max_error, error / bound)
        self._tally.sent += took["bytes"] + STEP_BYTES * len(bounds)
        self._tally.encode += took["encode"]
        self._tally.decode += took["decode"]
        return decoded

    def _ask(
        self, client: int, tensors: dict[str, NDArray]
    ) -> tuple[dict[str, Any], dict[str, NDArray]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        body = save({name: np.ascontiguousarray(x) for name, x in tensors.items()})
        asked = json.dumps({"client": client, "nbytes": len(body)}).encode()
        try:
            self._process.stdin.write(asked + b"\n" + body)
            self._process.stdin.flush()
            took = json.loads(self._process.stdout.readline())
            return took, load(self._process.stdout.read(took["nbytes"]))
        except (BrokenPipeError, json.JSONDecodeError) as err:
            self._process.wait()
            self._log.seek(0)
            raise CodecError(f"NNCodec ended: {self._log.read().decode()[-2000:]}") from err


def scale(x: NDArray, factor: float) -> NDArray:
    """Return ``x`` times ``factor``, multiplied in float64."""
    return (x * np.float64(factor)).astype(np.float32)
