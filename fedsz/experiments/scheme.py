"""Schemes: what a run does with its updates, as ``--ways`` write it and result tables hold it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from fedsz.bounds import ErrorBound
from fedsz.control.policy import AUTO, FIXED
from fedsz.core.settings import DEFAULT, EXACT, UPDATES, WEIGHTS, Settings
from fedsz.errors import ConfigError
from fedsz.training.options import RunConfig

RAW: Final = "raw"  # the codec of what is not compressed
DIRICHLET: Final = "dirichlet"  # the partitioner that takes a number
DEFAULTS: Final = RunConfig()
FORM: Final = (
    f"{RAW}, {AUTO}[@POINTS] and UPDATE[:CODEC][@BOUND][/DOWNLINK][ by POLICY[@POINTS]], where"
    f" UPDATE is one of {', '.join(UPDATES)}; or a chain of methods in place of UPDATE:CODEC@BOUND"
)


@dataclass(frozen=True)
class Scheme:
    """What a run does with its updates: the options of `RunConfig` that say so, by their names."""

    update: str = WEIGHTS
    codec: str = DEFAULT.codec  # a table may name one of a benchmark's
    downlink: str = DEFAULT.downlink
    decay: float = DEFAULT.decay
    error_bound: str = DEFAULT.error_bound  # "" if it is not known, as of a table that names none
    policy: str = FIXED  # that decides about the above; "fixed" if they are all
    tolerance: float = DEFAULTS.tolerance  # points of accuracy that a policy may cost

    @classmethod
    def of_config(cls, config: Settings, **more: Any) -> Self:
        """Return the scheme of a config, ``more`` being what no config says."""
        return cls(**{name: getattr(config, name) for name in (*STORED, "error_bound")}, **more)

    @classmethod
    def of_run(cls, run: RunConfig) -> Self:
        """Return the scheme of a run."""
        decided = {name: getattr(run, name) for name in DECIDED}
        return cls.of_config(run.compression, **decided)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the scheme of a run by a row of a sweep's table."""
        known = {name: row[name] for name in (*STORED, "policy")}
        if row["tolerance"] is not None:  # a policy asked for it
            known["tolerance"] = row["tolerance"]
        kind = row["bound_kind"]
        return cls(**known, error_bound=str(ErrorBound(kind, row["bound_value"])) if kind else "")

    @property
    def bound(self) -> ErrorBound | None:
        """Of what clients send; None where no bound steers that."""
        from fedsz import codecs  # numpy and native libraries; --help needs none

        # A chain has bounds of its own.
        if not self.error_bound or self.update not in UPDATES or asks_nothing(self.policy):
            return None
        with suppress(ConfigError):  # nobody knows of a strange codec that it is not steered
            codec = codecs.parse(self.codec)
            if not (codec.lossy and codec.keeps_bound):
                return None
        return ErrorBound.of(self.error_bound)

    @property
    def plain(self) -> bool:
        """Whether weights go up, the model comes down as it is, and nothing is decided."""
        return (self.update, self.downlink, self.policy) == (WEIGHTS, EXACT, FIXED)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `RunConfig` that say all this."""
        options = asdict(self)
        if not self.bound:
            del options["error_bound"]
        return options | ({"lossless": RAW} if self.codec == RAW else {})

    @property
    def label(self) -> str:
        """What it is called whatever its bound."""
        return self._written("")

    def __str__(self) -> str:
        """Return it as a sweep's ``ways`` take it, without what is a default."""
        return self._written(f"@{self.bound}" if self.bound else "")

    def _written(self, bound: str) -> str:
        text = self.update if self.codec == DEFAULT.codec else f"{self.update}:{self.codec}"
        text = (RAW if self.codec == RAW else text) + bound
        if self.downlink != EXACT:
            text += f"/{self.downlink}"
        if self.policy == FIXED:
            return text
        points = "" if self.tolerance == DEFAULTS.tolerance else f"@{self.tolerance:g}"
        decides = f"{self.policy}{points}"
        return decides if asks_nothing(self.policy) and text == WEIGHTS else f"{text} by {decides}"


# Of a config, what a scheme writes besides the bound; a table has a column for each.
STORED: Final = ("update", "codec", "downlink", "decay")
DECIDED: Final = ("policy", "tolerance")  # and besides a config

_SENT: Final = "|".join(map(re.escape, sorted((RAW, *UPDATES), key=len, reverse=True)))
_WRITTEN: Final = re.compile(
    rf"(?:(?P<update>{_SENT})(?::(?P<codec>[^@/]+?))?(?:@(?P<bounds>[^/]+?))?|(?P<chain>[^/]+?))"
    r"(?:/(?P<downlink>.+?))?(?: +by +(?P<policy>[^@]+?)(?:@(?P<points>.*?))?)?"
)


def parse(text: str, usual: Scheme) -> tuple[Scheme, str]:
    """Return the scheme that a text of the form `FORM` says, and its bounds; "" if it says none.

    Schemes have of ``usual`` what they do not say.

    Raises:
        ConfigError: it is not of that form, or names what does not exist.
    """
    found = _WRITTEN.fullmatch(re.sub(rf"^(?={AUTO}([@+:]|$))", f"{WEIGHTS} by ", text.strip()))
    if found is None:
        raise ConfigError(f"no scheme {text!r}; have {FORM}")
    said = {name: part for name, part in found.groupdict().items() if part is not None}
    if "chain" in said:
        from fedsz import methods  # numpy and native libraries; --help needs none

        try:
            methods.parse(said["chain"])
        except ConfigError as err:
            raise ConfigError(f"no scheme {text!r}; have {FORM}: {err}") from None
    try:
        tolerance = float(said.get("points", usual.tolerance))
    except ValueError:
        raise ConfigError(
            f"no scheme {text!r}: {said['points']!r} is no number of points"
        ) from None
    raw = RAW in (said.get("update"), said.get("codec"))
    if raw:
        said |= {"update": WEIGHTS, "codec": RAW}
        usual = replace(usual, downlink=EXACT, policy=FIXED)
    config = Settings(
        update=said.get("update") or said["chain"],
        codec=said.get("codec", usual.codec),
        downlink=said.get("downlink", usual.downlink),
        decay=usual.decay,
        error_bound=usual.error_bound,
    )
    decided: dict[str, Any] = {"policy": said.get("policy", usual.policy), "tolerance": tolerance}
    scheme = Scheme.of_config(config, **decided)
    if "bounds" in said and scheme.bound is None:
        raise ConfigError("its codec takes no bound")
    if raw and scheme.policy != FIXED:
        raise ConfigError(f"{RAW} leaves a policy nothing to decide")
    return scheme, said.get("bounds", "")


def at(scheme: Scheme, bounds: tuple[ErrorBound, ...]) -> list[Scheme]:
    """Return a scheme at each bound, or once if none steers it."""
    if scheme.bound is None:
        return [scheme]
    return [replace(scheme, error_bound=str(bound)) for bound in bounds]


def asks_nothing(policy: str) -> bool:
    """Say whether a policy chooses bounds with no regard to those that were asked for."""
    return AUTO in (part.partition(":")[0] for part in policy.split("+"))


def partition_name(partitioner: str, alpha: float | None) -> str:
    """Return how images are shared out, as a sweep's ``partitions`` take it."""
    return f"{partitioner}:{alpha:g}" if partitioner == DIRICHLET and alpha else partitioner
