"""The options of `fedsz paper`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from msgspec import Meta

from benchmarks.paper.published import BANDWIDTH, DATASETS, MODELS
from fedsz.core.partition import PAPER as PAPER_RULE
from fedsz.core.settings import WEIGHTS
from fedsz.errors import ConfigError
from fedsz.experiments.link_model import Link
from fedsz.experiments.sweep_plan import PLURAL, error_bounds, names
from fedsz.training.options import COMPRESSION, LEARNED, PAPER, RunConfig, Use


@dataclass(frozen=True, kw_only=True)
class PaperConfig(RunConfig):
    """How ours of the paper's tables and figures are made.

    Its training settings are those of `RunConfig` with smaller defaults: on two cores, the paper's
    own take days. configs/paper-full.toml has them.

    Raises:
        ConfigError: a value is out of range or does not exist.
    """

    # fmt: off
    update: Annotated[str, Meta(description="What clients send: weights, as the paper has it."),
        Use(COMPRESSION, ())] = WEIGHTS
    models: Annotated[str, Meta(description="Models, separated by commas."),
        Use(LEARNED, (PAPER,))] = ",".join(MODELS)
    datasets: Annotated[str, Meta(description="Data sets, separated by commas."),
        Use(LEARNED, (PAPER,))] = "cifar10"
    error_bounds: Annotated[str, Meta(description="Bounds of Table V and Figures 5, 7 and 10; "
        "1e-5..1e-1 is one a decade."), Use(COMPRESSION, (PAPER,))] = "1e-5..1e-1"
    # fmt: on
    rule: str = PAPER_RULE
    max_client_share: float = 1.0  # its clients are its own
    max_update_norm: str = "none"
    samples: int = 2000
    test_samples: int = 500
    rounds: int = 2
    batch_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        models, datasets = ("cnn", *MODELS), ("digits", *DATASETS)
        asked = [("model", name, models) for name in self.model_names]
        asked += [("data set", name, datasets) for name in self.dataset_names]
        for what, name, have in asked:
            if name not in have:
                raise ConfigError(f"no {what} {name!r} here; have {', '.join(have)}")
        if any(bound.kind != "rel" for bound in error_bounds(self.error_bounds)):
            given = f"error_bounds has {self.error_bounds!r}"
            raise ConfigError(f"the paper's bounds are relative; {given}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Do as `RunConfig.of`."""
        for name in (name for name in values if name.replace("-", "_") in PLURAL):
            have = "models, datasets and error_bounds, and the paper's codecs"
            raise ConfigError(f"fedsz paper has no option {name!r}; it compares {have}")
        return super().of(values)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models."""
        return names(self.models, "models")

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The data sets."""
        return names(self.datasets, "data sets")

    @property
    def first_dataset(self) -> str:
        """The data set of tables and figures that need only one."""
        return self.dataset_names[0]

    @property
    def bounds(self) -> list[float]:
        """The error bounds, relative to each tensor's range."""
        return [bound.value for bound in error_bounds(self.error_bounds)]

    def model_like(self, papers: str) -> str:
        """Return the paper's model for a figure of one model if it is asked for, else the first."""
        return papers if papers in self.model_names else self.model_names[0]

    def run_config(self, model: str, dataset: str) -> RunConfig:
        """Return the federation without compression that trains a model."""
        run = {name: getattr(self, name) for name in RunConfig.__dataclass_fields__}
        run |= {"model": model, "dataset": dataset, "codec": "raw", "lossless": "raw"}
        run["initial"] = self.initial.replace("{model}", model)  # as a sweep has it
        return RunConfig(**run | {"min_clients": self.clients})


@dataclass(frozen=True)
class MeasurementOptions:
    """Where measurements come from and go to, and how long they take.

    Raises:
        ConfigError: the folder or the file is not there, or a number is out of range.
    """

    folder: Path = Path("runs/paper")  # for figures, trained weights and runs
    weights: Path | None = None  # a folder of trained weights to use; None to train
    sweep: Path | None = None  # a file that `fedsz sweep` wrote, to use; None to run one
    bandwidth: float = BANDWIDTH  # bit/s of the links that transfer is calculated for
    repeats: int = 3  # timed passes of a codec
    seconds: float = 10.0  # for all of them

    def __post_init__(self) -> None:
        for what, path in (("weights", self.weights), ("sweep", self.sweep)):
            if path is not None and not path.exists():
                raise ConfigError(f"no {what} at {path}")
        if self.weights is not None and not self.weights.is_dir():
            raise ConfigError(f"weights must be a folder, {self.weights} is a file")
        Link(self.bandwidth)  # refuses what is not above 0
        if self.repeats < 1 or not self.seconds > 0:
            given = f"got {self.repeats} and {self.seconds}"
            raise ConfigError(f"repeats must be at least 1 and seconds above 0, {given}")
