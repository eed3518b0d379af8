"""Every option of a training run, once: its name, type, range, default, meaning and commands.

The command line, TOML files, variables of the environment and Flower's run config take their
names and ranges from here.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_args, get_type_hints

import msgspec
from msgspec import Meta

from fedsz.bounds import ErrorBound
from fedsz.control.policy import AUTO, FIXED
from fedsz.core.settings import DEFAULT, Settings
from fedsz.data_share import Share
from fedsz.errors import ConfigError, cannot
from fedsz.formatting import did_you_mean
from fedsz.privacy.budget import CLIP, DELTA
from fedsz.threads import MOST

# Sections of --help, in its order.
LEARNED: Final = "Task and data"
LEARNING: Final = "Training"
COMPRESSION: Final = "Compression"
SECURE: Final = "Secure sums"
PRIVACY: Final = "Differential privacy"
TRUST: Final = "Admission of replies"
TRAVEL: Final = "Network"
RESULTS: Final = "Results"
WATCHING: Final = "Monitoring"

# Commands that take options of a run.
RUN, SERVER, CLIENT, SWEEP, PAPER = "run", "server", "client", "sweep", "paper"
COMPRESS, BENCH, ADVISE = "compress", "bench", "advise"
ALONE: Final = (RUN, SERVER)  # a sweep has many of these
SHARED: Final = (RUN, SERVER, SWEEP)
TRAINING: Final = (*SHARED, PAPER)
TENSORS: Final = (*SHARED, PAPER, COMPRESS, BENCH, ADVISE)
LINK: Final = (SERVER, CLIENT)

ANY_SHARE: Final = "auto"  # a partition: the one that the server gives

# Options that a policy decides; "" where they are not named.
_NAMED: Final = ("error_bound", "update", "downlink", "rule")
_DECIDED: Final = (*_NAMED, "threshold")  # by the policy auto

# Options of a server's that cost a client time or memory; it has a `max_` for each.
CAPPED: Final = ("epochs", "image_size", "batch_size")

# Tasks of fedsz, and where they are. A user's own task is named in the same way, module:Class.
BUILT_IN: Final = {
    "images": "fedsz.training.images:ImagesTask",
    "text": "fedsz.training.text:TextTask",
    "tabular": "fedsz.training.tabular:TabularTask",
}
# The default data set and model of a task.
USUAL: Final = {
    "images": ("digits", "cnn"),
    "text": ("shakespeare", "gpt"),
    "tabular": ("breast_cancer", "mlp"),
}
OWN: Final = ("own", "own")  # of a user's own task, which may ignore these names

_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Use:
    """Where an option appears, and what it decides: beside `msgspec.Meta` in an annotation.

    ``defines_run``: runs that differ in it are different runs to a sweep; so are those that differ
    in an axis of the sweep, which is not among these.
    """

    panel: str  # of --help
    commands: tuple[str, ...]  # that take it
    alone: str = ""  # its value if a flag names it without one; "" if it needs one
    sent: bool = False  # whether the server sends it to clients each round
    defines_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Option(Use):
    """An option, as its annotation in `RunConfig` or a subclass describes it."""

    schema: Any  # the annotation
    kind: Any  # its type without the range: bool, int, float, str, or float | str
    says: str  # its description, which --help shows
    low: float = -math.inf  # its range, both ends included
    high: float = math.inf

    def read(self, name: str, value: Any) -> Any:
        """Return ``value`` as the option's type; whole numbers may stand for others.

        Raises:
            ConfigError: it is of another type, or out of range; the message says what is possible.
        """
        try:
            return msgspec.convert(value, self.schema)
        except msgspec.ValidationError:
            wanted = "a number or text in quotes" if self.kind == float | str else "text in quotes"
            wanted = _KINDS.get(self.kind, wanted)
            if self.low > -math.inf:
                wanted += f" from {self.low:.10g} to {self.high:.10g}"
            raise ConfigError(f"{name} must be {wanted}, got {value!r}") from None


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run. TOML files, command-line flags and Flower's run config have these names.

    A flag is a name with dashes for underscores. Server, clients and `fedsz run` share the names
    and use those that concern them. A subclass may give an option another default.

    Raises:
        ConfigError: a value is out of range or does not exist.
    """

    # fmt: off
    task: Annotated[str, Meta(description="Task: images, text, tabular, or module:Class of your "
        "own."), Use(LEARNED, (*SHARED, CLIENT), sent=True)] = "images"
    dataset: Annotated[str, Meta(description="Data set. images: digits, cifar10, fashion_mnist, "
        "caltech101; text: shakespeare, or any text file's name; tabular: breast_cancer, "
        "digits. Default: the task's first."),
        Use(LEARNED, (RUN, SERVER, CLIENT), sent=True)] = ""
    data_dir: Annotated[str, Meta(description="Folder with the data set's files, but for "
        "those that come with scikit-learn."), Use(LEARNED, (*TRAINING, CLIENT))] = ""
    samples: Annotated[int, Meta(ge=0, le=1 << 40, description="Training examples in all; 0 for "
        "the whole data set."), Use(LEARNED, TRAINING, sent=True, defines_run=True)] = 0
    image_size: Annotated[int, Meta(ge=0, le=4096, description="Scale images to this many pixels a "
        "side; 0 keeps their size."), Use(LEARNED, TRAINING, sent=True, defines_run=True)] = 0
    test_samples: Annotated[int, Meta(ge=0, le=1 << 40, description="Examples that the model is "
        "tested on; 0 for the whole data set."), Use(LEARNED, TRAINING, defines_run=True)] = 0
    model: Annotated[str, Meta(description="Model. images: cnn, alexnet, mobilenetv2, resnet50; "
        "text: gpt, lstm; tabular: mlp, linear. Default: the task's first."),
        Use(LEARNED, ALONE, sent=True)] = ""
    initial: Annotated[str, Meta(description="Start from the weights in this .safetensors file, "
        "instead of random ones."), Use(LEARNED, (*TRAINING, CLIENT))] = ""
    partitioner: Annotated[str, Meta(description="How clients share the examples: iid; or "
        "dirichlet, by labels."),
        Use(LEARNED, TRAINING, sent=True, defines_run=True)] = "iid"
    alpha: Annotated[float, Meta(ge=1e-6, le=1e6, description="Dirichlet concentration: the "
        "smaller, the more skewed the labels."),
        Use(LEARNED, TRAINING, sent=True, defines_run=True)] = 0.5
    seed: Annotated[int, Meta(ge=0, le=(1 << 32) - 1, description="Seed of the model, the "
        "partition and the order of the examples."), Use(LEARNED, TRAINING, sent=True)] = 0

    rounds: Annotated[int, Meta(ge=1, le=1_000_000, description="Federated rounds."),
        Use(LEARNING, TRAINING, defines_run=True)] = 5
    epochs: Annotated[int, Meta(ge=1, le=10_000, description="Passes over a client's examples each "
        "round."), Use(LEARNING, TRAINING, sent=True, defines_run=True)] = 1
    batch_size: Annotated[int, Meta(ge=1, le=1 << 20, description="Examples per SGD step."),
        Use(LEARNING, TRAINING, sent=True, defines_run=True)] = 16
    learning_rate: Annotated[float, Meta(ge=1e-12, le=1e6, description="SGD learning rate."),
        Use(LEARNING, TRAINING, sent=True, defines_run=True)] = 0.01
    momentum: Annotated[float, Meta(ge=0, le=0.9999, description="SGD momentum."),
        Use(LEARNING, TRAINING, sent=True, defines_run=True)] = 0.9
    device: Annotated[str, Meta(description="Where to train and test: cpu, cuda or cuda:1, as "
        "torch names it."), Use(LEARNING, (*TRAINING, CLIENT), defines_run=True)] = "cpu"
    min_clients: Annotated[int, Meta(ge=1, le=1_000_000, description="Start as soon as this many "
        "clients are connected."), Use(LEARNING, (SERVER,))] = 2
    clients: Annotated[int, Meta(ge=1, le=1000, description="Client processes that `fedsz run` "
        "starts."), Use(LEARNING, (RUN, SWEEP, PAPER), defines_run=True)] = 4
    clients_per_round: Annotated[int, Meta(ge=0, le=1_000_000, description="Clients that train in "
        "a round, drawn again for each round; 0 for all."), Use(LEARNING, SHARED)] = 0
    min_replies: Annotated[int, Meta(ge=1, le=1_000_000, description="Usable replies that a round "
        "needs. With fewer, the round does not count: the model stays as it is. Three such rounds "
        "in a row end the run."), Use(LEARNING, SHARED)] = 1
    round_timeout: Annotated[float, Meta(ge=1, le=1e9, description="Longest time, in seconds, that "
        "a round waits for its slowest client."), Use(LEARNING, SHARED)] = 3600.0
    deadline_factor: Annotated[float, Meta(ge=0, le=1e6, description="How long a round waits for "
        "slow clients, as a multiple of the median time of its replies; 0 for --round-timeout "
        "alone."), Use(LEARNING, SHARED)] = 3.0

    buffer: Annotated[int, Meta(ge=0, le=1_000_000, description="Asynchronous rounds (FedBuff): "
        "make a new model from this many updates, without waiting for other clients; 0 for rounds "
        "that wait for all."), Use(LEARNING, ALONE)] = 0

    policy: Annotated[str, Meta(description="Compression policy: auto chooses bounds that keep "
        "accuracy within --tolerance; fixed uses the options given here; docs/choosing.md has the "
        "others. Default: auto, or fixed if --update, --error-bound, --downlink or --rule is "
        "given."),
        Use(COMPRESSION, SHARED)] = ""
    tolerance: Annotated[float, Meta(ge=0, le=100, description="Points of accuracy that "
        "compression may cost, for policies that use it."), Use(COMPRESSION, SHARED)] = 0.5
    update: Annotated[str, Meta(description="What clients send: weights; delta, the difference "
        "from the model that they received; or delta+ef, the default, which adds what earlier "
        "rounds left out. It may be a chain of methods, such as 'feedback>topk:k=1%>ternary': see "
        "fedsz methods."), Use(COMPRESSION, SHARED)] = ""
    error_bound: Annotated[float | str, Meta(description="Largest error: 1e-2 (of each tensor's "
        "range), abs:1e-3, std:0.1 or step:1 (of the whole step). Default: 1e-2, unless a policy "
        "decides."), Use(COMPRESSION, (*ALONE, COMPRESS))] = ""
    decay: Annotated[float, Meta(ge=0, le=1, description="With delta+ef: factor of a client's "
        "residual for each round that it waits, 0 to 1."), Use(COMPRESSION, SHARED)] = DEFAULT.decay
    downlink: Annotated[str, Meta(description="Model that clients receive: exact, or within a "
        "bound such as step:1 or std:1. Default: exact, if the policy is fixed."),
        Use(COMPRESSION, SHARED)] = ""
    codec: Annotated[str, Meta(description="Codec for lossy tensors, such as uniform:effort=9, "
        "sz2, zfp:precision=14 or raw."), Use(COMPRESSION, (*ALONE, COMPRESS))] = DEFAULT.codec
    lossless: Annotated[str, Meta(description="Codec for all other tensors, such as blosclz, zstd "
        "or raw."),
        Use(COMPRESSION, (*TRAINING, COMPRESS, ADVISE), defines_run=True)] = DEFAULT.lossless
    threshold: Annotated[int, Meta(description="Tensors of up to this many elements stay "
        "lossless; auto takes 0."),
        Use(COMPRESSION, TENSORS, defines_run=True)] = DEFAULT.threshold
    rule: Annotated[str, Meta(description="Which tensors may be lossy: shape, the usual rule (all "
        "but BatchNorm's statistics), ndim (two dimensions and more), paper (weights, by name) or "
        "parameters."), Use(COMPRESSION, TENSORS, defines_run=True)] = ""
    threads: Annotated[int, Meta(ge=0, le=MOST, description="Threads that code tensors at a time; "
        "0 for one on each core."), Use(COMPRESSION, (COMPRESS, *LINK))] = 1

    secure_sum: Annotated[int, Meta(ge=0, le=32, description="The server learns the sum of a "
        "round's updates, and no update: with so many bits for each parameter, 2 to 32, in place "
        "of compression. 0 for none."), Use(SECURE, ALONE)] = 0
    secure_only: Annotated[int, Meta(ge=0, le=1 << 14, description="Train for secure sums of this "
        "many clients or more, also after some drop out, and for no other round; with --tls-cert "
        "their keys must be signed. 0 trains for any round."), Use(SECURE, (CLIENT,))] = 0
    dp_epsilon: Annotated[float, Meta(ge=0, le=1e6, description="Differential privacy: the most "
        "that the run may spend, with --dp-delta; 0 for none."), Use(PRIVACY, ALONE)] = 0.0
    dp_delta: Annotated[float, Meta(ge=1e-300, le=0.5, description="Delta of that."),
        Use(PRIVACY, ALONE)] = DELTA
    dp_noise: Annotated[float, Meta(ge=0, le=1e6, description="Noise multiplier: the noise's "
        "deviation in clipping norms. 0 for the least that keeps all rounds within the budget."),
        Use(PRIVACY, ALONE)] = 0.0
    dp_clip: Annotated[float, Meta(ge=1e-30, le=1e30, description="Norm that each update is "
        "clipped to."), Use(PRIVACY, ALONE)] = CLIP
    dp_noise_at: Annotated[str, Meta(description="Who adds the noise: server, to the sum; client, "
        "to each update, so that the server learns little, too; or sum, each client a share of a "
        "--secure-sum's, which is far less noise."), Use(PRIVACY, ALONE)] = "server"
    dp_sampling: Annotated[float, Meta(ge=1e-9, le=1, description="Probability with which each "
        "client takes part in a round."), Use(PRIVACY, ALONE)] = 1.0
    dp_seed: Annotated[int, Meta(ge=-1, le=(1 << 32) - 1, description="Draw the noise from this "
        "seed, for tests: it hides nothing then. -1 for the system's secure generator."),
        Use(PRIVACY, ALONE)] = -1
    dp_most_epsilon: Annotated[float, Meta(ge=0, le=1e6, description="Spend this epsilon at most, "
        "at a delta of 1e-5, over all runs, as long as --state-dir is there: by noise at this "
        "client or in the secure sum, and never without. 0 for no limit."),
        Use(PRIVACY, (CLIENT,))] = 0.0
    dp_most_rounds: Annotated[int, Meta(ge=0, le=1_000_000_000, description="Train in this many "
        "rounds at most, over all runs, as long as --state-dir is there: a server that asks on "
        "averages the noise away. 0 for no limit."), Use(PRIVACY, (CLIENT,))] = 0

    max_client_share: Annotated[float, Meta(ge=1e-6, le=1, description="Largest share of a round's "
        "weight for one client, if all others have the median weight. A larger weight is lowered. "
        "1 for no limit, nor one for fast clients of --buffer."), Use(TRUST, ALONE)] = 0.2
    max_update_norm: Annotated[str, Meta(description="Updates of a larger norm are clipped to it: "
        "a number; 3x for three times the median of the last round; or none. refuse:3x refuses "
        "them instead."), Use(TRUST, ALONE)] = "3x"

    host: Annotated[str, Meta(description="Address that the server listens on."),
        Use(TRAVEL, (SERVER,))] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port that the server listens on; 0 for "
        "any free port."), Use(TRAVEL, (SERVER,))] = 8080
    server: Annotated[str, Meta(description="HOST:PORT that a client connects to."),
        Use(TRAVEL, (CLIENT,))] = "127.0.0.1:8080"
    shares: Annotated[int, Meta(ge=0, le=1_000_000, description="Shares of the data that the "
        "server gives to clients with --partition auto; 0 for as many as --min-clients."),
        Use(TRAVEL, (SERVER,))] = 0
    partition: Annotated[str, Meta(description="This client's share of the data: I/N, from 0/N to "
        "N-1/N; or auto, for one that the server gives."), Use(TRAVEL, (CLIENT,))] = "0/1"
    client_id: Annotated[str, Meta(description="Name of this client; by default the one that its "
        "certificate or token is for, or else HOSTNAME/PARTITION; with --partition auto a name "
        "that is drawn."), Use(TRAVEL, (CLIENT,))] = ""
    max_epochs: Annotated[int, Meta(ge=1, le=10_000, description="Refuse a server that asks this "
        "client for more epochs a round."), Use(TRAVEL, (CLIENT,))] = 100
    max_image_size: Annotated[int, Meta(ge=1, le=4096, description="Refuse a server that asks for "
        "larger images, in pixels."), Use(TRAVEL, (CLIENT,))] = 256
    max_batch_size: Annotated[int, Meta(ge=1, le=1 << 20, description="Refuse a server that asks "
        "for larger batches."), Use(TRAVEL, (CLIENT,))] = 1024
    max_message_mb: Annotated[float, Meta(ge=0.1, le=1e6, description="Largest message, in MB, "
        "before this client has built its model; later ones may have twice the model's size."),
        Use(TRAVEL, (CLIENT,))] = 512.0
    max_wait: Annotated[float, Meta(ge=0, le=1e9, description="Seconds that a client keeps trying "
        "to reach the server."), Use(TRAVEL, (CLIENT,))] = 300.0
    reconnect_grace: Annotated[float, Meta(ge=0, le=1e6, description="Seconds that a client may "
        "take to connect again."), Use(TRAVEL, ALONE)] = 10.0
    insecure: Annotated[bool, Meta(description="Send plaintext: anyone on the path can read and "
        "change it."), Use(TRAVEL, LINK)] = False
    tls_cert: Annotated[str, Meta(description="PEM file with this side's certificate."),
        Use(TRAVEL, LINK)] = ""
    tls_key: Annotated[str, Meta(description="PEM file with this side's private key."),
        Use(TRAVEL, LINK)] = ""
    tls_ca: Annotated[str, Meta(description="PEM file with the authority that signs the other "
        "side's certificate."), Use(TRAVEL, LINK)] = ""
    token_file: Annotated[str, Meta(description="File with this client's token, for a server that "
        "asks for one."), Use(TRAVEL, (CLIENT,))] = ""
    client_file: Annotated[str, Meta(description="The fleet's clients, as `fedsz keys` writes "
        "them: revoked ones are refused. Without --tls-ca each client needs a token."),
        Use(TRAVEL, (SERVER,))] = ""

    run_dir: Annotated[str, Meta(description="Folder for results; runs/DATE-TIME by default."),
        Use(RESULTS, ALONE)] = ""
    keep_updates: Annotated[bool, Meta(description="Keep each update, before it is checked, in "
        "RUN_DIR/updates. Its name is its SHA-256, as in rounds.jsonl."),
        Use(RESULTS, ALONE)] = False
    resume: Annotated[str, Meta(description="Continue the run in this folder after its last "
        "finished round, with the options that it began with."), Use(RESULTS, ALONE)] = ""
    or_resume: Annotated[bool, Meta(description="Continue the run in --run-dir if it holds one, "
        "and begin one there if it does not. If that run has finished, end with exit code 0."),
        Use(RESULTS, (SERVER,))] = False
    state_dir: Annotated[str, Meta(description="Folder where this client keeps its model and "
        "residual, to continue after a crash; none by default."), Use(RESULTS, (CLIENT,))] = ""

    dashboard: Annotated[str, Meta(description="Serve a live page of the run on HOST:PORT; without "
        "a value, on 127.0.0.1:8265."), Use(WATCHING, ALONE, alone="127.0.0.1:8265")] = ""
    dashboard_token: Annotated[str, Meta(description="File with the token that browsers need. A "
        "dashboard that is not on loopback needs one."), Use(WATCHING, ALONE)] = ""
    metrics_port: Annotated[int, Meta(ge=0, le=65535, description="Serve metrics for Prometheus, "
        "/healthz and /readyz on this port; 0 for none."), Use(WATCHING, ALONE)] = 0
    metrics_host: Annotated[str, Meta(description="Address that metrics are served on."),
        Use(WATCHING, ALONE)] = "127.0.0.1"
    track: Annotated[str, Meta(description="Report each round to experiment trackers: tensorboard, "
        "mlflow or wandb, separated by commas."), Use(WATCHING, ALONE)] = ""
    # fmt: on

    def __post_init__(self) -> None:
        for name, option in options(type(self)).items():
            object.__setattr__(self, name, option.read(name, getattr(self, name)))
        for name, usual in zip(("dataset", "model"), USUAL.get(self.task, OWN), strict=True):
            object.__setattr__(self, name, getattr(self, name) or usual)
        self._choose_compression()
        _ = self.share

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
    def decided_by_policy(self) -> tuple[str, ...]:
        """Options that the run's policy decides, so that their values here are not used."""
        return _DECIDED if self.policy.split("+")[0] == AUTO else ()

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
        values = {**read_toml(path), **overrides}
        try:
            return cls.of(values)
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


def _read_options(of: type) -> Mapping[str, Option]:
    described: dict[str, Any] = {}
    for kind in of.__mro__[-2::-1]:  # a subclass that changes a default need not repeat the rest
        hints = get_type_hints(kind, include_extras=True)
        described |= {name: hint for name, hint in hints.items() if _use(hint)}
    found = {}
    for field in dataclasses.fields(of):
        if field.name in described:
            schema = described[field.name]
            kind, meta, use = get_args(schema)
            ends = {"low": meta.ge, "high": meta.le} if meta.ge is not None else {}
            says = meta.description or ""
            found[field.name] = Option(**vars(use), schema=schema, kind=kind, says=says, **ends)
    return found


def _use(hint: Any) -> bool:
    return any(isinstance(one, Use) for one in get_args(hint))


_options: Callable[[type], Mapping[str, Option]] = cache(_read_options)


def options_of(*commands: str, of: type[RunConfig] = RunConfig) -> list[str]:
    """Return the names of the options that all of these commands take."""
    return [name for name, about in options(of).items() if set(commands) <= set(about.commands)]


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    with cannot(f"read {path}"):
        text = path.read_text("utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"{path} is not TOML: {err}") from err
