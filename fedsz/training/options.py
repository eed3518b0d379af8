"""Every option of a training run: its name, default, meaning, range and readers, once."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, get_type_hints

from fedsz.bounds import ErrorBound
from fedsz.control.policy import AUTO, FIXED
from fedsz.core.settings import DEFAULT, Settings
from fedsz.data_share import Share
from fedsz.errors import ConfigError, cannot
from fedsz.formatting import did_you_mean
from fedsz.privacy.budget import DELTA
from fedsz.quantities import bandwidth
from fedsz.training.option import (
    ADVISE,
    ALONE,
    CLIENT,
    COMPRESS,
    COMPRESSION,
    LEARNED,
    LEARNING,
    LINK,
    PAPER,
    PRIVACY,
    RESULTS,
    RUN,
    SERVER,
    SHARED,
    SWEEP,
    TENSORS,
    TRAINING,
    TRAVEL,
    TRUST,
    WATCHING,
    Option,
    option,
    typed,
)

ANY_SHARE: Final = "auto"  # a partition: the one that the server gives


# Options that are of no use to a policy that decides them; "" where they are not named.
_NAMED: Final = ("error_bound", "update", "downlink", "rule")

# Options of a server's that cost a client time or memory; it has a `max_` for each.
CAPPED: Final = ("epochs", "image_size", "batch_size")

# Tasks of fedsz, and where they are; one of somebody's own is named as these are, module:Class.
BUILT_IN: Final = {
    "images": "fedsz.training.images:ImagesTask",
    "text": "fedsz.training.text:TextTask",
    "tabular": "fedsz.training.tabular:TabularTask",
}
# The data set and the model that a task takes unless told otherwise.
USUAL: Final = {
    "images": ("digits", "cnn"),
    "text": ("shakespeare", "gpt"),
    "tabular": ("breast_cancer", "mlp"),
}
OWN: Final = ("own", "own")  # of somebody's own task, which need not heed these names


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run. TOML files, command-line flags and Flower's run config have these names.

    A flag is a name with dashes for underscores. Server, clients and `fedsz run` share the names
    and use those that concern them.

    Raises:
        ConfigError: a value is out of range or does not exist.
    """

    # Two lines an option: what it is; its panel, its commands, and the rest.
    # fmt: off
    task: str = option("images", "Task: images, text, tabular, or module:Class of your own.",
        LEARNED, (*SHARED, CLIENT), sent=True)
    dataset: str = option("", "Data set. images: digits, cifar10, fashion_mnist, caltech101; text: "
        "shakespeare, or any text file's name; tabular: breast_cancer, digits, iris, wine, "
        "diabetes. [dim]Default: the task's first.[/]", LEARNED, (RUN, SERVER, CLIENT), sent=True)
    data_dir: str = option("", "Folder with the data set's files; without it, images come from the "
        "Hugging Face Hub.", LEARNED, (*TRAINING, CLIENT))
    samples: int = option(0, "Training examples in all; 0 for the whole data set.",
        LEARNED, TRAINING, low=0, high=1 << 40, sent=True, defines_run=True)
    image_size: int = option(0, "Scale images to this many pixels a side; 0 keeps their size.",
        LEARNED, TRAINING, low=0, high=4096, sent=True, defines_run=True)
    test_samples: int = option(0, "Examples that the model is tested on; 0 for the whole data "
        "set.", LEARNED, TRAINING, low=0, high=1 << 40, defines_run=True)
    model: str = option("", "Model. images: cnn, alexnet, mobilenetv2, resnet50; text: gpt, lstm; "
        "tabular: mlp, linear. [dim]Default: the task's first.[/]", LEARNED, ALONE, sent=True)
    initial: str = option("", "Start from the weights in this .safetensors file, instead of random "
        "ones.", LEARNED, (*TRAINING, CLIENT))
    partitioner: str = option("iid", "How clients share the examples: iid; dirichlet, by labels; "
        "or speaker, by who speaks in a text.", LEARNED, TRAINING, sent=True, defines_run=True)
    alpha: float = option(0.5, "Dirichlet concentration: the smaller, the more skewed the labels.",
        LEARNED, TRAINING, low=1e-6, high=1e6, sent=True, defines_run=True)
    seed: int = option(0, "Seed of the model, the partition and the order of the examples.",
        LEARNED, TRAINING, low=0, high=(1 << 32) - 1, sent=True)

    rounds: int = option(5, "Federated rounds.",
        LEARNING, TRAINING, low=1, high=1_000_000, defines_run=True)
    epochs: int = option(1, "Passes over a client's examples each round.",
        LEARNING, TRAINING, low=1, high=10_000, sent=True, defines_run=True)
    batch_size: int = option(16, "Examples per SGD step.",
        LEARNING, TRAINING, low=1, high=1 << 20, sent=True, defines_run=True)
    learning_rate: float = option(0.01, "SGD learning rate.",
        LEARNING, TRAINING, low=1e-12, high=1e6, sent=True, defines_run=True)
    momentum: float = option(0.9, "SGD momentum.",
        LEARNING, TRAINING, low=0, high=0.9999, sent=True, defines_run=True)
    device: str = option("cpu", "Where to train and test: cpu, cuda or cuda:1, as torch names it.",
        LEARNING, (*TRAINING, CLIENT), defines_run=True)
    min_clients: int = option(2, "Start as soon as this many clients are connected.",
        LEARNING, (SERVER,), low=1, high=1_000_000)
    clients: int = option(4, "Client processes that `fedsz run` starts.",
        LEARNING, (RUN, SWEEP, PAPER), low=1, high=1000, defines_run=True)
    clients_per_round: int = option(0, "Clients that train in a round, drawn again for each round; "
        "0 for all.", LEARNING, SHARED, low=0, high=1_000_000)
    min_replies: int = option(1, "Usable replies that a round needs. With fewer, the round does "
        "not count: the model stays as it is. Three such rounds in a row end the run.",
        LEARNING, SHARED, low=1, high=1_000_000)
    round_timeout: float = option(3600.0, "Longest time, in seconds, that a round waits for its "
        "slowest client.", LEARNING, SHARED, low=1, high=1e9)
    deadline_factor: float = option(3.0, "How long a round waits for slow clients, as a multiple "
        "of the median time of its replies; 0 for --round-timeout alone.",
        LEARNING, SHARED, low=0, high=1e6)

    buffer: int = option(0, "Asynchronous rounds (FedBuff): make a new model from this many "
        "updates, without waiting for other clients; 0 for rounds that wait for all.",
        LEARNING, ALONE, low=0, high=1_000_000)
    max_staleness: int = option(20, "With --buffer: refuse an update if more than this many models "
        "are newer than the one that it started from.", LEARNING, ALONE, low=0, high=1_000_000)

    policy: str = option("", "Compression policy: auto chooses bounds that keep accuracy within "
        "--tolerance; fixed uses the options given here; docs/choosing.md has the others. Default: "
        "auto, or fixed if --update, --error-bound, --downlink or --rule is given.",
        COMPRESSION, SHARED)
    tolerance: float = option(0.5, "Points of accuracy that compression may cost, for policies "
        "that use it.", COMPRESSION, SHARED, low=0, high=100)
    update: str = option("", "What clients send: weights; delta, the difference from the model "
        "that they received; or delta+ef, the default, which adds what earlier rounds left out. It "
        "may be a chain of methods, such as 'feedback>topk:k=1%>ternary': see fedsz methods.",
        COMPRESSION, SHARED)
    error_bound: float | str = option("", "Largest error: 1e-2 (of each tensor's range), "
        "abs:1e-3, std:0.1 or step:1 (of the whole step). Default: 1e-2, unless a policy decides.",
        COMPRESSION, (*ALONE, COMPRESS))
    decay: float = option(DEFAULT.decay, "With delta+ef: factor of a client's residual for each "
        "round that it waits, 0 to 1.", COMPRESSION, SHARED, low=0, high=1)
    downlink: str = option("", "Model that clients receive: exact, or within a bound such as "
        "step:1 or std:1. Default: exact, if the policy is fixed.", COMPRESSION, SHARED)
    codec: str = option(DEFAULT.codec, "Codec for lossy tensors, such as uniform:effort=9, sz2, "
        "zfp:precision=14 or raw.", COMPRESSION, (*ALONE, COMPRESS))
    lossless: str = option(DEFAULT.lossless, "Codec for all other tensors, such as blosclz, zstd "
        "or raw.", COMPRESSION, (*TRAINING, COMPRESS, ADVISE), defines_run=True)
    threshold: int = option(DEFAULT.threshold, "Tensors of up to this many elements stay lossless.",
        COMPRESSION, TENSORS, defines_run=True)
    rule: str = option("", "Which tensors may be lossy: shape, the usual rule (all but BatchNorm's "
        "statistics), ndim (two dimensions and more), paper (weights, by name) or parameters.",
        COMPRESSION, TENSORS, defines_run=True)

    secure_sum: int = option(0, "The server learns the sum of a round's updates, and no update: "
        "with so many bits for each parameter, 2 to 32, in place of compression. 0 for none.",
        PRIVACY, ALONE, low=0, high=32)
    secure_only: int = option(0, "Train for secure sums of this many clients or more, also "
        "after some drop out, and for no other round; with --tls-cert their keys must be signed. "
        "0 trains for any round.",
        PRIVACY, (CLIENT,), low=0, high=1 << 14)
    dp_epsilon: float = option(0.0, "Differential privacy: the most that the run may spend, with "
        "--dp-delta; 0 for none.", PRIVACY, ALONE, low=0, high=1e6)
    dp_delta: float = option(DELTA, "Delta of that.", PRIVACY, ALONE, low=1e-300, high=0.5)
    dp_noise: float = option(0.0, "Noise multiplier: the noise's deviation in clipping norms. 0 "
        "for the least that keeps all rounds within the budget.", PRIVACY, ALONE, low=0, high=1e6)
    dp_clip: str = option("quantile", "Norm that each update is clipped to: a number; or quantile, "
        "which follows the norms: quantile:target=0.5,start=0.1.", PRIVACY, ALONE)
    dp_noise_at: str = option("server", "Who adds the noise: server, to the sum; client, to each "
        "update, so that the server learns little, too; or sum, each client a share of a "
        "--secure-sum's, which is far less noise.", PRIVACY, ALONE)
    dp_sampling: float = option(1.0, "Probability with which each client takes part in a round.",
        PRIVACY, ALONE, low=1e-9, high=1)
    dp_seed: int = option(-1, "Draw the noise from this seed, for tests: it hides nothing then. -1 "
        "for the system's secure generator.", PRIVACY, ALONE, low=-1, high=(1 << 32) - 1)
    dp_least_noise: float = option(0.0, "Refuse a server that asks for less noise than this, in "
        "clipping norms: on this client's update, or on the secure sum.",
        PRIVACY, (CLIENT,), low=0, high=1e6)
    dp_most_rounds: int = option(0, "Train in this many rounds at most, over all runs, as long as "
        "--state-dir is there: a server that asks on averages the noise away. 0 for no limit.",
        PRIVACY, (CLIENT,), low=0, high=1_000_000_000)

    max_client_share: float = option(0.2, "Largest share of a round's weight for one client, if "
        "all others have the median weight. A larger weight is lowered. 1 for no limit, nor one "
        "for fast clients of --buffer.", TRUST, ALONE, low=1e-6, high=1)
    max_update_norm: str = option("3x", "Updates of a larger norm are clipped to it: a number; "
        "3x for three times the median of the last round; or none. refuse:3x refuses them instead.",
        TRUST, ALONE)
    allow_codecs: str = option("", "Codecs that clients may use besides the one that the server "
        "asks for, separated by commas.", TRUST, ALONE)

    host: str = option("127.0.0.1", "Address that the server listens on.", TRAVEL, (SERVER,))
    port: int = option(8080, "Port that the server listens on; 0 for any free port.",
        TRAVEL, (SERVER,), low=0, high=65535)
    server: str = option("127.0.0.1:8080", "HOST:PORT that a client connects to.",
        TRAVEL, (CLIENT,))
    shares: int = option(0, "Shares of the data that the server gives to clients with --partition "
        "auto; 0 for as many as --min-clients.", TRAVEL, (SERVER,), low=0, high=1_000_000)
    partition: str = option("0/1", "This client's share of the data: I/N, from 0/N to N-1/N; or "
        "auto, for one that the server gives.", TRAVEL, (CLIENT,))
    client_id: str = option("", "Name of this client; by default the one that its certificate or "
        "token is for, or else HOSTNAME/PARTITION; with --partition auto a name that is drawn.",
        TRAVEL, (CLIENT,))
    max_epochs: int = option(100, "Refuse a server that asks this client for more epochs a round.",
        TRAVEL, (CLIENT,), low=1, high=10_000)
    max_image_size: int = option(256, "Refuse a server that asks for larger images, in pixels.",
        TRAVEL, (CLIENT,), low=1, high=4096)
    max_batch_size: int = option(1024, "Refuse a server that asks for larger batches.",
        TRAVEL, (CLIENT,), low=1, high=1 << 20)
    max_message_mb: float = option(512.0, "Largest message, in MB, before this client has built "
        "its model; later ones may have twice the model's size.", TRAVEL, (CLIENT,),
        low=0.1, high=1e6)
    max_wait: float = option(300.0, "Seconds that a client keeps trying to reach the server.",
        TRAVEL, (CLIENT,), low=0, high=1e9)
    limit_rate: str = option("", "Send and receive no faster than this, such as 10mbps; no limit "
        "by default.", TRAVEL, (CLIENT,))
    reconnect_grace: float = option(10.0, "Seconds that a client may take to connect again.",
        TRAVEL, ALONE, low=0, high=1e6)
    max_connections_per_address: int = option(0, "Connections that one address may hold; 0 for "
        "half of what file descriptors allow.", TRAVEL, (SERVER,), low=0, high=1_000_000)
    insecure: bool = option(False, "Send plaintext: anyone on the path can read and change it.",
        TRAVEL, LINK)
    tls_cert: str = option("", "PEM file with this side's certificate.", TRAVEL, LINK)
    tls_key: str = option("", "PEM file with this side's private key.", TRAVEL, LINK)
    tls_ca: str = option("", "PEM file with the authority that signs the other side's "
        "certificate.", TRAVEL, LINK)
    token_file: str = option("", "File with this client's token, for a server that asks for one.",
        TRAVEL, (CLIENT, ADVISE))
    tokens: str = option("", "File with the hashes of clients' tokens: each client needs one.",
        TRAVEL, (SERVER,))
    revoked: str = option("", "File with revoked serial numbers. Clients that have one are "
        "refused, or disconnected within seconds.", TRAVEL, (SERVER,))

    run_dir: str = option("", "Folder for results; runs/DATE-TIME by default.", RESULTS, ALONE)
    keep_updates: bool = option(False, "Keep each update, before it is checked, in RUN_DIR/updates."
        " Its name is its SHA-256, as in rounds.jsonl.", RESULTS, ALONE)
    resume: str = option("", "Continue the run in this folder after its last finished round, with "
        "the options that it began with.", RESULTS, ALONE)
    state_dir: str = option("", "Folder where this client keeps its model and residual, to "
        "continue after a crash; none by default.", RESULTS, (CLIENT,))

    dashboard: str = option("", "Serve a live page of the run on HOST:PORT; without a value, on "
        "127.0.0.1:8265.", WATCHING, ALONE, alone="127.0.0.1:8265")
    dashboard_token: str = option("", "File with the token that browsers need. A dashboard that is "
        "not on loopback needs one.", WATCHING, ALONE)
    metrics_port: int = option(0, "Serve metrics for Prometheus, /healthz and /readyz on this "
        "port; 0 for none.", WATCHING, ALONE, low=0, high=65535)
    metrics_host: str = option("127.0.0.1", "Address that metrics are served on.", WATCHING, ALONE)
    track: str = option("", "Report each round to experiment trackers: tensorboard, mlflow or "
        "wandb, separated by commas.", WATCHING, ALONE)
    # fmt: on

    def __post_init__(self) -> None:
        kinds = _kinds(type(self))
        for name, about in options(type(self)).items():
            value = typed(name, getattr(self, name), kinds[name])
            low, high = about.low, about.high
            if not isinstance(value, str) and not low <= value <= high:
                raise ConfigError(f"{name} must lie in {low:g}..{high:g}, got {value:g}")
            object.__setattr__(self, name, value)
        for name, usual in zip(("dataset", "model"), USUAL.get(self.task, OWN), strict=True):
            object.__setattr__(self, name, getattr(self, name) or usual)
        self._choose_compression()
        _ = self.share, self.max_bits

    def _choose_compression(self) -> None:
        """Fill in what was not named: whoever names a bound, or what it is of, gets exactly that.

        After this all is said, so that a run that is written down is read as it was.
        """
        named = [name for name in _NAMED if getattr(self, name) != ""]
        if not self.policy:
            object.__setattr__(self, "policy", FIXED if named else AUTO)
        for name in _NAMED:
            if name not in named:
                object.__setattr__(self, name, getattr(DEFAULT, name))
        bound = ErrorBound.of(self.error_bound)
        object.__setattr__(self, "error_bound", bound.value if bound.kind == "rel" else str(bound))
        object.__setattr__(self, "downlink", self.compression.downlink)

    @property
    def share(self) -> Share | None:
        """What ``partition`` names; None if the server is to give one."""
        if self.partition == ANY_SHARE:
            return None
        if (share := Share.parse(self.partition)) is None:
            wanted = f"I/N with I from 0 to N-1, or {ANY_SHARE}"
            raise ConfigError(f"partition must be {wanted}, got {self.partition!r}")
        return share

    @property
    def max_bits(self) -> float:
        """``limit_rate`` in bits a second; infinite for none."""
        bits = bandwidth(self.limit_rate) if self.limit_rate else math.inf
        if not bits >= 1:
            raise ConfigError(f"limit_rate must be at least 1bps, got {self.limit_rate!r}")
        return bits

    @property
    def compression(self) -> Settings:
        """How updates and models are compressed.

        Raises:
            ConfigError: no such codec.
        """
        names = Settings.__struct_fields__
        given = {name: getattr(self, name) for name in names if name in options(RunConfig)}
        return Settings(**{**given, "error_bound": str(ErrorBound.of(self.error_bound))})

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the run that ``values`` describe, defaults filling the rest.

        Raises:
            ConfigError: an unknown name, or a value that its option cannot have.
        """
        known = list(options(cls))
        # Flower's run config and users' habits write dashes.
        named = {name.replace("-", "_"): value for name, value in values.items()}
        for name in named:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigError(f"no option {name!r}{hint}; have {', '.join(known)}")
        return cls(**named)

    @classmethod
    def read(cls, path: Path, **overrides: Any) -> Self:
        """Return the run that a TOML file describes; ``overrides`` win.

        Raises:
            ConfigError: the file cannot be read or is not TOML, or as in `of`.
        """
        with cannot(f"read {path}"):
            text = path.read_text("utf-8")
        try:
            return cls.of({**tomllib.loads(text), **overrides})
        except tomllib.TOMLDecodeError as err:
            raise ConfigError(f"{path} is not TOML: {err}") from err
        except ConfigError as err:
            raise ConfigError(f"{path}: {err}") from None

    def as_dict(self) -> dict[str, Any]:
        """Return every option with its value."""
        return dataclasses.asdict(self)


def is_own_task(name: str) -> bool:
    """Say whether a task is somebody's own, ``module:Class``, and not one of fedsz."""
    return ":" in name


def options(of: type[RunConfig] = RunConfig) -> Mapping[str, Option]:
    """Return the options of a kind of run, by their names, in order."""
    return _options(of)


def _options_in(of: type) -> Mapping[str, Option]:
    fields = dataclasses.fields(of)
    found = {f.name: f.metadata["option"] for f in fields if "option" in f.metadata}
    return MappingProxyType(found)


# A sweep has hundreds of runs.
_kinds: Callable[[type], Mapping[str, Any]] = cache(get_type_hints)
_options: Callable[[type], Mapping[str, Option]] = cache(_options_in)


def otherwise(name: str, default: Any) -> Any:
    """Return an option of `RunConfig` with another default, for a kind of run of its own."""
    return dataclasses.field(default=default, metadata={"option": options()[name]})


def options_of(*commands: str, of: type[RunConfig] = RunConfig) -> list[str]:
    """Return the names of the options that all of these commands take."""
    return [name for name, about in options(of).items() if set(commands) <= set(about.commands)]
