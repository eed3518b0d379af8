"""What `fedsz paper` is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from fedsz.bounds import ErrorBound
from fedsz.errors import ConfigError
from fedsz.experiments.sweep_plan import PLURAL, error_bounds, names
from fedsz.paper.published import DATASETS, MODELS
from fedsz.training.options import COMPRESSION, LEARNED, PAPER, RunConfig, option, otherwise
from fedsz.update.config import WEIGHTS

TABLES: Final = (1, 2, 3, 5)
FIGURES: Final = tuple(range(2, 11))
ABSENT: Final = {  # what there is no table or figure of ours for
    "table 4": "it describes the data sets",
    "figure 1": "it is a drawing of the pipeline; docs/pipeline.svg is ours",
}


@dataclass(frozen=True, kw_only=True)
class PaperConfig(RunConfig):
    """How ours of the paper's tables and figures are made.

    Its training settings are those of `RunConfig` with smaller defaults: on two cores, the paper's
    own take days. configs/paper-full.toml has them.

    Raises:
        ConfigError: a value is out of range or does not exist.
    """

    update: str = option(
        WEIGHTS, "What clients send: weights, as the paper has it.", COMPRESSION, ()
    )
    models: str = option(",".join(MODELS), "Models, separated by commas.", LEARNED, (PAPER,))
    datasets: str = option("cifar10", "Data sets, separated by commas.", LEARNED, (PAPER,))
    error_bounds: str = option(
        "1e-5..1e-1", "Bounds of Table V and Figures 5, 7 and 10; 1e-5..1e-1 is one a decade.",
        COMPRESSION, (PAPER,),
    )  # fmt: skip
    samples: int = otherwise("samples", 2000)
    test_samples: int = otherwise("test_samples", 500)
    rounds: int = otherwise("rounds", 2)
    batch_size: int = otherwise("batch_size", 32)

    def __post_init__(self) -> None:
        super().__post_init__()
        _known("model", self.model_names, ("cnn", *MODELS))
        _known("data set", self.dataset_names, ("digits", *DATASETS))
        if any(bound.kind != "rel" for bound in self.bounds):
            raise ConfigError(
                f"the paper's bounds are relative; error_bounds has {self.error_bounds!r}"
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings that ``values`` describe, defaults filling the rest.

        Raises:
            ConfigError: an unknown name, or a value that its option cannot have.
        """
        for one in PLURAL:
            if one in {name.replace("-", "_") for name in values}:
                many = PLURAL[one]
                known = many in cls.__dataclass_fields__
                raise ConfigError(
                    f"fedsz paper has {many!r}, not {one!r}"
                    if known
                    else f"fedsz paper compares the paper's codecs; it has no option {one!r}"
                )
        return super().of(values)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models."""
        return names(self.models, "models")

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The data sets; the first is that of what needs one alone."""
        return names(self.datasets, "data sets")

    @property
    def bounds(self) -> tuple[ErrorBound, ...]:
        """The relative bounds."""
        return error_bounds(self.error_bounds)


@dataclass(frozen=True)
class Sources:
    """Where `fedsz paper` takes and puts things.

    Attributes:
        folder: for figures, trained weights and runs.
        weights: a folder of trained weights to use; None to train.
        sweep: a file that `fedsz sweep` wrote, to use; None to run one.
        bandwidth: bit/s of the links that transfer is calculated for.
        repeats: timed passes of a codec.
        seconds: for all of them.
    """

    folder: Path = Path("runs/paper")
    weights: Path | None = None
    sweep: Path | None = None
    bandwidth: float = 10e6
    repeats: int = 3
    seconds: float = 10.0

    def __post_init__(self) -> None:
        for what, path in (("weights", self.weights), ("sweep", self.sweep)):
            if path is not None and not path.exists():
                raise ConfigError(f"no {what} at {path}")
        if self.weights is not None and not self.weights.is_dir():
            raise ConfigError(f"weights must be a folder, {self.weights} is a file")
        if self.repeats < 1 or not self.seconds > 0:
            raise ConfigError(
                "repeats must be at least 1 and seconds above 0,"
                f" got {self.repeats} and {self.seconds}"
            )


def wanted(tables: list[int], figures: list[int], *, everything: bool) -> list[str]:
    """Return the names of the tables and figures that were asked for, in the paper's order.

    Raises:
        ConfigError: there is none of a number, or none was asked for.
    """
    if everything:
        tables, figures = list(TABLES), list(FIGURES)
    for kind, asked, have in (("table", tables, TABLES), ("figure", figures, FIGURES)):
        for number in asked:
            if number not in have:
                why = ABSENT.get(f"{kind} {number}", "the paper has none")
                raise ConfigError(f"no {kind} {number}: {why}; have {', '.join(map(str, have))}")
    if not tables and not figures:
        raise ConfigError(
            f"give --table {'|'.join(map(str, TABLES))}, --figure {FIGURES[0]}..{FIGURES[-1]}"
            " or --all"
        )
    found = [f"table {number}" for number in sorted(set(tables))]
    return found + [f"figure {number}" for number in sorted(set(figures))]


def _known(what: str, asked: tuple[str, ...], have: tuple[str, ...]) -> None:
    for name in asked:
        if name not in have:
            raise ConfigError(f"no {what} {name!r} here; have {', '.join(have)}")
