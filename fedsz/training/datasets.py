"""Image data sets, and the share of one that a client holds.

A client works out its own share. What decides it - the seeded order of the training set, the
subset taken from its front, the partitioner's draw - is a function of the arguments alone, so
clients that agree on those and differ in ``partition`` hold disjoint shares that cover the subset.
Only labels are looked at to get there; images are read once it is known which are wanted.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch

from fedsz.errors import ConfigError, DataError, first_line
from fedsz.training.examples import Examples, Inputs
from fedsz.training.hold_out import Ints, hold_out
from fedsz.training.options import RunConfig
from fedsz.training.sklearn_tables import read_table

if TYPE_CHECKING:
    from datasets import Dataset

PARTITIONERS = ("iid", "dirichlet")

_TEST_SUBSET_SEED = 0


@dataclass(frozen=True)
class DatasetSpec:
    """A data set and how to read it."""

    name: str  # what `get` and the CLI call it
    num_classes: int  # labels are 0 ... num_classes - 1
    shape: tuple[int, int, int]  # (channels, height, width) of every image after decoding
    hub_id: str | None = None  # owner/name there; None for a set that comes with a library
    image_column: str = "image"  # of the encoded images, in the parquet files and on the hub
    label_column: str = "label"
    hub_has_test: bool = True  # if not, a fifth is held out here
    crop: bool = False  # images come in many sizes and are scaled and cropped to `shape`

    @property
    def mode(self) -> str:
        """What PIL calls images of so many channels."""
        return "L" if self.shape[0] == 1 else "RGB"


DATASETS = (
    DatasetSpec("digits", 10, (1, 8, 8)),
    DatasetSpec("cifar10", 10, (3, 32, 32), "uoft-cs/cifar10", image_column="img"),
    DatasetSpec("fashion_mnist", 10, (1, 28, 28), "zalando-datasets/fashion_mnist"),
    DatasetSpec(
        "caltech101", 101, (3, 128, 128), "flwrlabs/caltech101", hub_has_test=False, crop=True
    ),
)


@dataclass(frozen=True, eq=False)
class _Split:
    """The training or the test images of a set: labels in memory, images on demand."""

    labels: Ints
    read: Callable[[Ints], Inputs]

    def take(self, rows: Ints) -> Examples:
        return Examples(self.read(rows), torch.from_numpy(self.labels[rows]))

    def divided(self, split: str) -> _Split:
        """Four fifths of it to train with, or one fifth to test with, by class."""
        train, test = hold_out(self.labels)
        rows = train if split == "train" else test
        return _Split(self.labels[rows], lambda wanted: self.read(rows[wanted]))


def get(name: str) -> DatasetSpec:
    """Return the data set called ``name``.

    Raises:
        ConfigError: there is none.
    """
    named = {spec.name: spec for spec in DATASETS}
    if name not in named:
        raise ConfigError(f"no data set {name!r}; have {', '.join(named)}")
    return named[name]


def open_shares(
    name: str, division: Division, *, data_dir: Path | None
) -> Callable[[int], Examples]:
    """Return what loads a client's share of the training images, which is opened once for all.

    Images are decoded as they are trained on.

    Args:
        name: one of `DATASETS`.
        division: says what the shares are.
        data_dir: holds ``<name>/train.parquet`` and ``<name>/test.parquet``, or those two files
            themselves; None means the Hugging Face hub. ``digits`` comes with scikit-learn and
            needs neither.

    Raises:
        ConfigError: a name that cannot be; the message says which can. What is returned raises it
            for a share that there is not.
        DataError: the data set is not there or not what it should be, or there are too few
            images for every share to have one.
    """
    split = _open(get(name), "train", data_dir)
    rows_of = division.of_labels(split.labels, f"images of {name}")
    return lambda partition: split.take(rows_of(partition))


@dataclass(frozen=True)
class Division:
    """How labelled examples are divided among clients.

    Attributes:
        num_partitions: how many shares there are.
        partitioner: ``iid``, shares of equal size (give or take one), or ``dirichlet``, where
            each class is divided in proportions drawn from Dir(alpha) (Yurochkin et al., 2019,
            arXiv:1905.12022).
        alpha: of the Dirichlet distribution, > 0; the smaller, the more the shares differ.
        seed: decides the subset, the division and the order of the share.
        samples: divide only so many examples, drawn from the whole set; None divides all.

    Raises:
        ConfigError: a name or number that cannot be; the message says which can.
    """

    num_partitions: int
    partitioner: str = "iid"
    alpha: float = 0.5
    seed: int = 0
    samples: int | None = None

    @classmethod
    def of(cls, config: RunConfig, num_partitions: int) -> Self:
        """Return how the options of a run divide."""
        samples = config.samples or None
        return cls(num_partitions, config.partitioner, config.alpha, config.seed, samples)

    def __post_init__(self) -> None:
        if self.partitioner not in PARTITIONERS:
            have = ", ".join(PARTITIONERS)
            raise ConfigError(f"no partitioner {self.partitioner!r}; have {have}")
        if self.num_partitions < 1:
            raise ConfigError(f"num_partitions must be at least 1, got {self.num_partitions}")

    def of_labels(self, labels: npt.NDArray[Any], what: str) -> Callable[[int], Ints]:
        """Return what gives the rows of a share of labelled examples.

        ``what`` names the examples in errors, which are those of `open_shares`.
        """
        count = self.num_partitions
        rows = _subset(len(labels), self.samples, self.seed, f"training {what}")
        if len(rows) < count:
            raise DataError(f"{len(rows)} {what} cannot fill {count} partitions")
        equal = np.array_split(np.arange(len(rows)), count)
        drawn = None
        if self.partitioner == "dirichlet":
            drawn = _dirichlet(labels[rows], count, self.alpha, self.seed)

        def rows_of(partition: int) -> Ints:
            if not 0 <= partition < count:
                raise ConfigError(f"partition must lie in [0, {count}), got {partition}")
            return rows[drawn(partition) if drawn else equal[partition]]

        return rows_of


def load_test(name: str, *, data_dir: Path | None, samples: int | None = None) -> Examples:
    """Load the test images, which no share contains; ``data_dir`` is as in `open_shares`.

    They are decoded once: the server tests on them in each round.

    ``samples`` loads only so many, always the same ones in the same order; None loads all.

    Raises:
        ConfigError: ``name`` is none of `DATASETS`, or ``samples`` is more than there are.
        DataError: the data set is not there or not what it should be.
    """
    split = _open(get(name), "test", data_dir)
    rows = _subset(len(split.labels), samples, _TEST_SUBSET_SEED, f"test images of {name}")
    return split.take(rows).first(None)


def find_parquet(spec: DatasetSpec, split: str, data_dir: Path) -> Path:
    """Return the file that holds a split of a data set.

    Raises:
        DataError: it is neither in ``data_dir/<name>`` nor in ``data_dir``.
    """
    for folder in (data_dir / spec.name, data_dir):
        path = folder / f"{split}.parquet"
        if path.is_file():
            return path
    raise DataError(
        f"no {split}.parquet of {spec.name} in {data_dir}: expected train.parquet and "
        f"test.parquet in {data_dir / spec.name} or in {data_dir} itself"
    )


def _subset(total: int, samples: int | None, seed: int, what: str) -> Ints:
    """Row numbers of a seeded subset, in a seeded order."""
    if samples is not None and not 1 <= samples <= total:
        raise ConfigError(f"samples must lie in [1, {total}], the {what}; got {samples}")
    return np.random.default_rng(seed).permutation(total)[:samples]


def _dirichlet(labels: Ints, num_partitions: int, alpha: float, seed: int) -> Callable[[int], Ints]:
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    # The partitioner redraws everything, ten times at most, until each share has
    # `min_partition_size` images. A larger one would bend the distribution asked for.
    split = DirichletPartitioner(
        num_partitions, "label", float(alpha), min_partition_size=1, seed=seed
    )
    # It is shown positions in place of images: it would copy a table that has been shuffled.
    split.dataset = Dataset.from_dict({"position": np.arange(len(labels)), "label": labels})

    def share_of(partition: int) -> Ints:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one for each redraw
                return np.asarray(split.load_partition(partition)["position"], dtype=np.int64)
        except ValueError as err:
            raise DataError(
                f"{len(labels)} images drawn with alpha {alpha} leave one of {num_partitions} "
                "partitions empty; use a larger alpha, more samples or fewer partitions"
            ) from err

    return share_of


def _open(spec: DatasetSpec, split: str, data_dir: Path | None) -> _Split:
    if spec.hub_id is None:
        return _open_digits(split)
    if data_dir is None:
        return _open_hub(spec, spec.hub_id, split)
    return _open_file(spec, find_parquet(spec, split, data_dir))


def _open_digits(split: str) -> _Split:
    images, labels = read_table("digits")
    pixels = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)  # they are 0 ... 16
    return _Split(labels, lambda wanted: torch.from_numpy(pixels[wanted])).divided(split)


def _open_hub(spec: DatasetSpec, hub_id: str, split: str) -> _Split:
    options = {"split": split if spec.hub_has_test else "train"}
    way_out = f"{spec.name}/train.parquet and {spec.name}/test.parquet as --data-dir"
    trouble = f"cannot load {hub_id} from the Hugging Face hub"
    dataset = _load(hub_id, options, lambda why: f"{trouble} ({why}); give a folder with {way_out}")
    opened = _open_table(spec, dataset, hub_id)
    return opened if spec.hub_has_test else opened.divided(split)


def _open_file(spec: DatasetSpec, path: Path) -> _Split:
    """Check that a parquet file is what ``spec`` says, as far as that shows without its images."""
    from fedsz.training.encoded_images import EncodedImages
    from fedsz.training.parquet_images import ParquetImages

    file = ParquetImages(path, spec.image_column, spec.label_column)
    _check_columns(spec, file.contents.columns, path)
    _check_labels(spec, file.labels, file.contents.num_classes, path)
    return _Split(file.labels, lambda rows: EncodedImages(file.images(rows), spec, path))


def _open_table(spec: DatasetSpec, dataset: Dataset, hub_id: str) -> _Split:
    """Check that what the hub has is what ``spec`` says, its images aside."""
    import datasets

    from fedsz.training.encoded_images import EncodedImages

    _check_columns(spec, dataset.column_names, hub_id)
    # Files written by other means than `datasets` do not say that their structs are images.
    image = datasets.Image(decode=False)
    try:
        dataset = dataset.cast_column(spec.image_column, image)
        labels = np.array(dataset[spec.label_column][:], dtype=np.int64)
    except (TypeError, ValueError, NotImplementedError) as err:  # pyarrow has all three
        raise DataError(f"{hub_id} holds no labelled images: {first_line(err)}") from err
    classes = getattr(dataset.features[spec.label_column], "num_classes", None)
    _check_labels(spec, labels, classes, hub_id)

    def read(rows: Ints) -> EncodedImages:
        files = dataset.select(rows)[spec.image_column][:]
        return EncodedImages([file["bytes"] or b"" for file in files], spec, hub_id)

    return _Split(labels, read)


def _check_columns(spec: DatasetSpec, columns: list[str], where: Path | str) -> None:
    wanted = (spec.image_column, spec.label_column)
    if not set(wanted) <= set(columns):
        have = ", ".join(columns)
        raise DataError(f"{where} has columns {have}; {spec.name} has {', '.join(wanted)}")


def _check_labels(spec: DatasetSpec, labels: Ints, classes: int | None, where: Path | str) -> None:
    classes = spec.num_classes if classes is None else classes
    if classes != spec.num_classes or labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"{where} has {classes} classes and labels {labels.min()} ... {labels.max()}; "
            f"{spec.name} has labels 0 ... {spec.num_classes - 1}"
        )


def _load(source: str, options: dict[str, Any], trouble: Callable[[str], str]) -> Dataset:
    """Call `datasets.load_dataset`, its progress bars, retries and hints off: errors say it all.

    Raises:
        DataError: it failed, and ``trouble`` says so with the reason that it is given.
    """
    import datasets
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    hub_logging.set_verbosity(logging.CRITICAL)
    try:
        return datasets.load_dataset(source, **options)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as err:
        raise DataError(trouble(first_line(err))) from err
