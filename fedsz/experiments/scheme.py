"""Schemes: what a run does with its updates, as ``--ways`` write it and result tables hold it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import msgspec

from fedsz.bounds import ErrorBound
from fedsz.control.rule import AUTO, FIXED
from fedsz.errors import ConfigError
from fedsz.spec_strings import chosen
from fedsz.training.options import RunConfig
from fedsz.update.config import DEFAULT, EXACT, UPDATES, WEIGHTS, CompressionConfig, codec_text

RAW: Final = "raw"  # the codec of what is not compressed
DIRICHLET: Final = "dirichlet"  # the partitioner that takes a number
DEFAULTS: Final = RunConfig()
FORM: Final = (
    f"{RAW}, {AUTO}[@POINTS] and UPDATE[:CODEC][@BOUND][/DOWNLINK][ by POLICY[@POINTS]], where"
    f" UPDATE is one of {', '.join(UPDATES)}; or a chain of methods in place of UPDATE:CODEC@BOUND;"
    " those of sketches may end in ' into fetchsgd:k=K[,momentum=M]'"
)


@dataclass(frozen=True)
class Scheme:
    """What a run does with its updates."""

    config: CompressionConfig = DEFAULT  # as far as no policy decides otherwise
    policy: str = FIXED  # that decides; "fixed" if the above is all
    tolerance: float = DEFAULTS.tolerance  # points of accuracy that a policy may cost
    fetchsgd: str = ""  # elements that the server applies of the summed sketches
    server_momentum: float = 0.0  # of these sums

    @classmethod
    def of_run(cls, run: RunConfig) -> Self:
        """Return the scheme of a run."""
        asked = run.compression, run.policy, run.tolerance, run.fetchsgd, run.server_momentum
        return cls(*asked)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the scheme of a run by a row of a sweep's table; older ones lack some of it."""
        known = {name: value for name, value in row.items() if value is not None}
        config: dict[str, Any] = {name: known[name] for name in STORED if name in known}
        if "bound_kind" in known:
            config["error_bound"] = str(ErrorBound(known["bound_kind"], known["bound_value"]))
        # Weights were all that was sent before there was a choice.
        whole = _replaced(CompressionConfig(update=WEIGHTS), config)
        asked = {name: known[name] for name in (*DECIDED, *SERVER) if name in known}
        return cls(whole, **asked)

    @property
    def bound(self) -> ErrorBound | None:
        """Of what clients send; None where no bound steers that."""
        from fedsz import codecs  # numpy and native libraries; --help needs none

        try:
            codec = codecs.parse(self.config.codec)
        except ConfigError:  # see `_replaced`
            return self.config.bound if self.config.error_bound else None
        steered = codec.lossy and codec.keeps_bound and not asks_nothing(self.policy)
        steered = steered and self.config.update in UPDATES  # a chain has bounds of its own
        return self.config.bound if steered else None

    @property
    def plain(self) -> bool:
        """Whether weights go up, the model comes down as it is, and nothing is decided."""
        return (self.config.update, self.config.downlink, self.policy) == (WEIGHTS, EXACT, FIXED)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `RunConfig` that say all this."""
        options = {name: getattr(self.config, name) for name in STORED}
        options |= {name: getattr(self, name) for name in (*DECIDED, *SERVER)}
        if self.bound:
            options["error_bound"] = self.config.error_bound
        if self.config.codec == RAW:
            options["lossless"] = RAW
        return options

    @property
    def label(self) -> str:
        """What it is called whatever its bound."""
        return self._written("")

    def __str__(self) -> str:
        """Return it as a sweep's ``ways`` take it, without what is a default."""
        return self._written(f"@{self.bound}" if self.bound else "")

    def _written(self, bound: str) -> str:
        config = self.config
        text = config.update if config.codec == DEFAULT.codec else f"{config.update}:{config.codec}"
        text = (RAW if config.codec == RAW else text) + bound
        if config.downlink != EXACT:
            text += f"/{config.downlink}"
        if self.fetchsgd:
            momentum = f",momentum={self.server_momentum:g}" if self.server_momentum else ""
            text += f" into fetchsgd:k={self.fetchsgd}{momentum}"
        if self.policy == FIXED:
            return text
        points = "" if self.tolerance == DEFAULTS.tolerance else f"@{self.tolerance:g}"
        decides = f"{self.policy}{points}"
        return decides if asks_nothing(self.policy) and text == WEIGHTS else f"{text} by {decides}"


def _replaced(base: CompressionConfig, changes: dict[str, Any]) -> CompressionConfig:
    """Return a config as a table tells it; its codec may be a benchmark's or another release's.

    Of such a codec nobody knows whether it keeps a bound: without one, its error_bound is "".
    """
    try:
        codec_text(changes.get("codec", base.codec))
    except ConfigError:
        unknown = {name: changes.pop(name, "") for name in ("codec", "error_bound")}
        config = base.replace(**changes)
        for name, text in unknown.items():
            msgspec.structs.force_setattr(config, name, text)
        return config
    return base.replace(**changes)


# Of a config, what a scheme writes besides the bound; a table has a column for each.
STORED: Final = ("update", "codec", "downlink", "decay")
DECIDED: Final = ("policy", "tolerance")  # and besides a config,
SERVER: Final = ("fetchsgd", "server_momentum")  # by options of a run of the same names


def parse(text: str, usual: Scheme) -> tuple[Scheme, str]:
    """Return the scheme that a text of the form `FORM` says, and its bounds; "" if it says none.

    Schemes have of ``usual`` what they do not say.

    Raises:
        ConfigError: it is not of that form, or names what does not exist.
    """
    sent, into, server = (part.strip() for part in f" {text} ".partition(" into "))
    what, by, decides = (part.strip() for part in f" {sent} ".partition(" by "))
    if not by and re.match(rf"{AUTO}([@+:]|$)", what):
        what, by, decides = WEIGHTS, "by", what
    front, slash, downlink = what.partition("/")
    update, colon, codec = front.partition("@")[0].partition(":")
    at, bounds = front.partition("@")[1:]
    if update not in (RAW, *UPDATES):
        update, colon, codec, at, bounds = front, "", "", "", ""
    policy, of, points = decides.partition("@")
    written = (colon, codec), (at, bounds), (slash, downlink), (by, policy)
    if update not in (RAW, *UPDATES):
        from fedsz import methods  # numpy and native libraries; --help needs none

        try:
            methods.parse(update)
        except ConfigError as err:
            raise ConfigError(f"no scheme {text!r}; have {FORM}: {err}") from None
    if any(bool(mark) != bool(part) for mark, part in written):
        raise ConfigError(f"no scheme {text!r}; have {FORM}")
    try:
        tolerance = float(points) if of else usual.tolerance
    except ValueError:
        raise ConfigError(f"no scheme {text!r}: {points!r} is no number of points") from None
    raw = RAW in (update, codec)
    config = usual.config.replace(
        update=WEIGHTS if raw else update,
        codec=RAW if raw else codec or usual.config.codec,
        downlink=downlink or (EXACT if raw else usual.config.downlink),
    )
    decided = policy or (FIXED if raw else usual.policy)
    scheme = Scheme(config, decided, tolerance, *(_server(server, config) if into else ()))
    if bounds and scheme.bound is None:
        raise ConfigError("its codec takes no bound")
    if raw and scheme.policy != FIXED:
        raise ConfigError(f"{RAW} leaves a policy nothing to decide")
    return scheme, bounds


def _server(text: str, config: CompressionConfig) -> tuple[str, float]:
    """Return which elements a server applies of the sketches that it feeds back, and its momentum.

    Raises:
        ConfigError: there is no such server or setting, or updates are no sketches for it.
    """
    from fedsz.methods.fetchsgd import SketchedFeedback, feeds

    server = chosen("server", text, [SketchedFeedback()])
    if not feeds(config.chain):
        raise ConfigError(f"{server.name} needs sketch:rows=5,fixed=1, got {config.update!r}")
    return str(server.k), server.momentum


def at(scheme: Scheme, bounds: tuple[ErrorBound, ...]) -> list[Scheme]:
    """Return a scheme at each bound, or once if none steers it."""
    if scheme.bound is None:
        return [scheme]
    configs = [scheme.config.replace(error_bound=str(bound)) for bound in bounds]
    return [replace(scheme, config=config) for config in configs]


def asks_nothing(policy: str) -> bool:
    """Say whether a policy chooses bounds with no regard to those that were asked for."""
    return AUTO in (part.partition(":")[0] for part in policy.split("+"))


def partition_name(partitioner: str, alpha: float | None) -> str:
    """Return how images are shared out, as a sweep's ``partitions`` take it."""
    return f"{partitioner}:{alpha:g}" if partitioner == DIRICHLET and alpha else partitioner
