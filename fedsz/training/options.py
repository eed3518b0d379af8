"""Every option of a training run: its name, default, meaning and range, once."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_type_hints

from fedsz.bounds import ErrorBound
from fedsz.errors import ConfigError
from fedsz.update.config import DEFAULT_UPDATE, EXACT, Settings, check_update
from fedsz.update.partition import check_rule


def option(default: Any, says: str) -> Any:
    """Return a field with its one-line description, which ``--help`` shows."""
    return dataclasses.field(default=default, metadata={"help": says})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run. TOML files, command-line flags and Flower's run config have these names.

    A flag is a name with dashes for underscores. Server, clients and `fedsz run` share the names
    and use those that concern them.

    Raises:
        ConfigError: a value is out of range or does not exist.
    """

    # What is learned
    dataset: str = option("digits", "Data set: digits, cifar10, fashion_mnist or caltech101.")
    data_dir: str = option("", "Folder with the data set's parquet files; without it, the hub.")
    samples: int = option(0, "Take this many training images in all; 0 for all there are.")
    model: str = option("cnn", "Model: cnn, alexnet, mobilenetv2 or resnet50.")
    initial: str = option("", "Start from the weights in this .safetensors file, not from random.")
    partitioner: str = option("iid", "How images are shared out: iid or dirichlet.")
    alpha: float = option(0.5, "Dirichlet concentration: the smaller, the more skewed the labels.")
    image_size: int = option(0, "Scale images to this many pixels a side; 0 leaves them alone.")
    test_samples: int = option(0, "Judge the model by this many test images; 0 for all there are.")
    seed: int = option(0, "Seed of the model, the partition and the order of the images.")

    # How it is learned
    rounds: int = option(5, "Federated rounds.")
    epochs: int = option(1, "Passes over a client's images each round.")
    batch_size: int = option(16, "Images per SGD step.")
    learning_rate: float = option(0.01, "SGD learning rate.")
    momentum: float = option(0.9, "SGD momentum.")
    device: str = option("cpu", "Where to train and test: cpu, cuda or cuda:1, as torch names it.")
    min_clients: int = option(2, "Start as soon as this many clients are there.")
    round_timeout: float = option(3600.0, "Seconds a round waits for its slowest client.")

    # How updates are compressed
    error_bound: float | str = option(
        1e-2, "Largest error: 1e-2 (of each tensor's range), abs:1e-3 or std:0.1."
    )
    update: str = option(
        DEFAULT_UPDATE,
        "What clients send: weights; delta, the step from the model they were sent; or delta+ef,"
        " which adds what earlier rounds left out.",
    )
    downlink: str = option(
        "exact", "The model that clients are sent: exact, or within a bound, such as std:1."
    )
    policy: str = option(
        "fixed", "Who decides how hard to compress: fixed, these options; or auto and others."
    )
    tolerance: float = option(
        0.5, "Points of accuracy that compression may cost, for policies that ask."
    )
    codec: str = option(
        "uniform", "Codec for weights, such as uniform:effort=9, sz2, zfp:precision=14 or raw."
    )
    lossless: str = option("blosclz", "Codec for everything else, such as blosclz, zstd or raw.")
    threshold: int = option(1024, "Tensors of up to this many elements stay lossless.")
    rule: str = option(
        "paper",
        "Which tensors may be lossy: paper (weights, by name), ndim (by shape) or parameters (all"
        " but BatchNorm's statistics).",
    )

    # How they travel
    host: str = option("127.0.0.1", "Address the server listens on.")
    port: int = option(8080, "Port the server listens on; 0 for any that is free.")
    server: str = option("127.0.0.1:8080", "HOST:PORT that a client connects to.")
    partition: str = option("0/1", "This client's share of the data: I/N, from 0/N to N-1/N.")
    client_id: str = option("", "Name of this client; HOSTNAME/PARTITION by default.")
    max_wait: float = option(300.0, "Seconds a client keeps trying to reach the server.")
    reconnect_grace: float = option(10.0, "Seconds a client that left may take to come back.")
    insecure: bool = option(False, "Speak plaintext: anybody on the way can read and change it.")
    tls_cert: str = option("", "PEM file with this side's certificate.")
    tls_key: str = option("", "PEM file with its private key.")
    tls_ca: str = option("", "PEM file with the authority that the other side's must come from.")

    # What runs here
    clients: int = option(4, "Client processes that `fedsz run` starts.")
    run_dir: str = option("", "Folder for results; runs/DATE-TIME by default.")

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            object.__setattr__(self, name, _typed(name, getattr(self, name), kind))
        bound = ErrorBound.of(self.error_bound)
        object.__setattr__(self, "error_bound", bound.value if bound.kind == "rel" else str(bound))
        check_rule(self.rule, self.threshold)
        check_update(self.update)
        if self.downlink != EXACT:
            object.__setattr__(self, "downlink", str(ErrorBound.of(self.downlink)))
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} must lie in {low:g}..{high:g}, got {value:g}")
        _ = self.share

    @property
    def share(self) -> tuple[int, int]:
        """``partition`` as two numbers: which share, of how many."""
        index, _, count = self.partition.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ConfigError(f"partition must be I/N with I from 0 to N-1, got {self.partition!r}")
        return int(index), int(count)

    @property
    def settings(self) -> Settings:
        """How updates are compressed.

        Raises:
            ConfigError: no such codec.
            CodecUnavailable: its library is not installed here.
        """
        return Settings(self.error_bound, self.codec, self.lossless, self.threshold, self.rule)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the run that ``values`` describe, defaults filling the rest.

        Raises:
            ConfigError: an unknown name, or a value that its option cannot have.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        # Flower's run config and users' habits write dashes.
        named = {name.replace("-", "_"): value for name, value in values.items()}
        for name in named:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise ConfigError(f"no option {name!r}{hint}; have {', '.join(known)}")
        return cls(**named)

    @classmethod
    def read(cls, path: Path, **overrides: Any) -> Self:
        """Return the run that a TOML file describes; ``overrides`` win.

        Raises:
            ConfigError: the file cannot be read or is not TOML, or as in `of`.
        """
        try:
            values = tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"cannot read {path}: {getattr(err, 'strerror', err)}") from err
        except tomllib.TOMLDecodeError as err:
            raise ConfigError(f"{path} is not TOML: {err}") from err
        try:
            return cls.of({**values, **overrides})
        except ConfigError as err:
            raise ConfigError(f"{path}: {err}") from None

    def as_dict(self) -> dict[str, Any]:
        """Return every option with its value."""
        return dataclasses.asdict(self)


_RANGES = (
    ("samples", 0, 1 << 40),
    ("test_samples", 0, 1 << 40),
    ("image_size", 0, 4096),
    ("alpha", 1e-6, 1e6),
    ("seed", 0, (1 << 32) - 1),
    ("rounds", 1, 1_000_000),
    ("epochs", 1, 10_000),
    ("batch_size", 1, 1 << 20),
    ("learning_rate", 0, 1e6),
    ("momentum", 0, 0.9999),
    ("tolerance", 0, 100),
    ("min_clients", 1, 1_000_000),
    ("round_timeout", 1, 1e9),
    ("port", 0, 65535),
    ("max_wait", 0, 1e9),
    ("reconnect_grace", 0, 1e6),
    ("clients", 1, 1000),
)


def _typed(name: str, value: Any, kind: Any) -> Any:
    """Return ``value`` as its option's type; whole numbers will do where others are asked for."""
    if kind == float | str:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise ConfigError(f"{name} must be {_KINDS[kind]}, got {value!r}")
    return value


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text in quotes",
}
