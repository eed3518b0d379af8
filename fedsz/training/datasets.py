"""Image data sets, and the share of one that a client holds.

A client works out its own share. What decides it - the seeded order of the training set, the
subset taken from its front, the partitioner's draw - is a function of the arguments alone, so
clients that agree on those and differ in ``partition`` hold disjoint shares that cover the subset.
Only labels are looked at to get there; images are read once it is known which are wanted.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
import torch

from fedsz import extras
from fedsz.errors import ConfigError, DataError, MissingPackage, cannot, first_line
from fedsz.training.examples import Examples, Inputs
from fedsz.training.options import RunConfig
from fedsz.training.parquet_images import ParquetImages
from fedsz.training.seeding import generator

if TYPE_CHECKING:
    from datasets import Dataset
    from PIL import Image

Ints = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float64]

PARTITIONERS: Final = ("iid", "dirichlet")
TABLES: Final = ("breast_cancer", "digits", "iris", "wine", "diabetes")  # diabetes: a regression
TEST_SHARE: Final = 0.2

_TEST_SUBSET_SEED: Final = 0
# Of what is held out. With a run's own seed, a model would be tested on examples that another run
# trained on.
_HOLD_OUT_SEED: Final = 101
_DRAWS: Final = 10  # of Dirichlet shares, until each has an example


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
        if self.partitioner == "dirichlet":
            parts = _dirichlet(labels[rows], count, self.alpha, self.seed)
        else:
            parts = np.array_split(np.arange(len(rows)), count)

        def rows_of(partition: int) -> Ints:
            if not 0 <= partition < count:
                raise ConfigError(f"partition must lie in [0, {count}), got {partition}")
            return rows[parts[partition]]

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


def hold_out(labels: npt.NDArray[Any], *, by_class: bool = True) -> tuple[Ints, Ints]:
    """Return the rows to train with and those to test with, each in a seeded order.

    They are the rows of scikit-learn's `train_test_split`, whose import takes seconds.

    Args:
        labels: of the examples, shape (n,).
        by_class: whether both parts have the classes in the same proportions.
    """
    rng = generator(_HOLD_OUT_SEED)
    tested = math.ceil(TEST_SHARE * len(labels))
    if not by_class:
        rows = rng.permutation(len(labels))
        return rows[tested:], rows[:tested]
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
    trained = _apportion(counts, len(labels) - tested, rng)
    ends = trained + _apportion(counts - trained, tested, rng)
    shuffled = [rows[rng.permutation(len(rows))] for rows in members]
    train = [rows[:end] for rows, end in zip(shuffled, trained, strict=True)]
    test = [rows[begin:end] for rows, begin, end in zip(shuffled, trained, ends, strict=True)]
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


def _apportion(counts: Ints, total: int, rng: np.random.RandomState) -> Ints:
    """Divide a total in proportion to counts: largest remainders first, and ties by lot."""
    exact = counts / counts.sum() * total
    parts: npt.NDArray[np.float64] = np.floor(exact)
    missing = int(total - parts.sum())
    for remainder in np.unique(exact - parts)[::-1]:
        if not missing:
            break
        (tied,) = np.where(exact - np.floor(exact) == remainder)
        drawn = rng.choice(tied, size=min(len(tied), missing), replace=False)
        parts[drawn] += 1
        missing -= len(drawn)
    return parts.astype(np.int64)


def read_table(name: str) -> tuple[_Numbers, npt.NDArray[Any]]:
    """Return a table as `sklearn.datasets.load_<name>` has it.

    Args:
        name: one of `TABLES`.

    Returns:
        The features as they were measured, shape (rows, features), and for each row its class as
        int64, or of ``diabetes`` its target as float64.

    Raises:
        DataError: scikit-learn has no such file.
        MissingPackage: scikit-learn is not installed here.
    """
    if name == "diabetes":
        return _numbers("diabetes_data_raw.csv.gz", " "), _numbers("diabetes_target.csv.gz", " ")
    if name == "digits":
        rows = _numbers("digits.csv.gz", ",")
    else:  # a first line has the counts of rows and features, and the names of classes
        rows = _numbers("wine_data.csv" if name == "wine" else f"{name}.csv", ",", header=1)
    return rows[:, :-1], rows[:, -1].astype(np.int64)


def _numbers(file: str, delimiter: str, header: int = 0) -> _Numbers:
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise MissingPackage(f"the data {extras.missing('sklearn')}")
    path = Path(found.submodule_search_locations[0], "datasets", "data", file)
    with cannot(f"read {path} of scikit-learn", DataError):
        return np.loadtxt(path, delimiter=delimiter, skiprows=header)


class EncodedImages:
    """Images in memory as the files that they were.

    ``images[rows]`` decodes some of them, uint8 [N, C, H, W]; ``rows`` is a slice, or row numbers,
    int64 [N].

    Args:
        files: one each, in a format that Pillow knows.
        spec: the data set whose images they should be.
        where: what they were read from, for errors.
    """

    def __init__(self, files: Sequence[bytes], spec: DatasetSpec, where: Path | str) -> None:
        self._files, self._spec, self._where = files, spec, where

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, rows: torch.Tensor | slice) -> torch.Tensor:
        """Decode.

        Raises:
            DataError: an image cannot be decoded, or has another size than those of its set.
        """
        from PIL import Image, ImageOps

        wanted = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        x = np.empty((len(wanted), *self._spec.shape), dtype=np.uint8)
        try:
            for place, row in enumerate(wanted):
                image = Image.open(BytesIO(self._files[row]))
                x[place] = self._pixels(ImageOps.exif_transpose(image))
        except OSError as err:
            what = f"{self._where} has an image that cannot be decoded"
            raise DataError(f"{what}: {first_line(err)}") from err
        return torch.from_numpy(x)

    def _pixels(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        """Return an image as [C, H, W]."""
        from PIL import Image, ImageOps

        channels, height, width = self._spec.shape
        if image.mode != self._spec.mode:
            image = image.convert(self._spec.mode)
        if self._spec.crop:  # the short side to size, then the middle
            image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        elif image.size != (width, height):
            raise DataError(
                f"{self._where} has an image of {image.width}x{image.height} pixels; "
                f"those of {self._spec.name} have {width}x{height}"
            )
        return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


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
    return generator(seed).permutation(total)[:samples]


def _dirichlet(labels: Ints, count: int, alpha: float, seed: int) -> list[Ints]:
    """Divide the positions of ``labels`` into shares: each class in proportions from Dir(alpha)."""
    draws = generator(seed)
    for _ in range(_DRAWS):
        shares: list[list[Ints]] = [[] for _ in range(count)]
        for label in np.unique(labels):
            weights = draws.standard_gamma(alpha, count)
            if not weights.any():  # so small an alpha gives a class to one share
                weights[draws.randint(count)] = 1
            members = np.flatnonzero(labels == label)
            ends = np.cumsum(weights / weights.sum())[:-1] * len(members)
            for share, part in zip(shares, np.split(members, ends.astype(np.int64)), strict=True):
                share.append(part)
        divided = [draws.permutation(np.concatenate(share)) for share in shares]
        if all(len(share) for share in divided):
            return divided
    raise DataError(
        f"{len(labels)} images drawn with alpha {alpha} leave one of {count} partitions empty; use "
        "a larger alpha, more samples or fewer partitions"
    )


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
    file = ParquetImages(path, spec.image_column, spec.label_column)
    _check_columns(spec, file.contents.columns, path)
    _check_labels(spec, file.labels, file.contents.num_classes, path)
    return _Split(file.labels, lambda rows: EncodedImages(file.images(rows), spec, path))


def _open_table(spec: DatasetSpec, dataset: Dataset, hub_id: str) -> _Split:
    """Check that what the hub has is what ``spec`` says, its images aside."""
    import datasets

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
