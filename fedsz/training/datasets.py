"""Image data sets, and the share of one that a client holds.

A client works out its own share. What decides it - the seeded order of the training set, the
subset taken from its front, the partitioner's draw - is a function of the arguments alone, so
clients that agree on those and differ in ``partition`` hold disjoint shares that cover the subset.
Only labels are looked at to get there; images are decoded once it is known which are wanted.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import torch

from fedsz import extras
from fedsz.errors import ConfigError, DataError, MissingPackage, cannot, first_line
from fedsz.training.examples import Examples
from fedsz.training.options import RunConfig
from fedsz.training.seeding import generator

Ints = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float64]

PARTITIONERS: Final = ("iid", "dirichlet")
TABLES: Final = ("breast_cancer", "digits")
TEST_SHARE: Final = 0.2

_TEST_SUBSET_SEED: Final = 0
# Of what is held out. With a run's own seed, a model would be tested on examples that another run
# trained on.
_HOLD_OUT_SEED: Final = 101
_DRAWS: Final = 10  # of Dirichlet shares, until each has an example
_BATCH: Final = 256  # encoded images in memory at a time


@dataclass(frozen=True)
class DatasetSpec:
    """A data set and how to read it."""

    name: str  # what `get` and the CLI call it
    num_classes: int  # labels are 0 ... num_classes - 1
    shape: tuple[int, int, int]  # (channels, height, width) of every image after decoding
    image_column: str = "image"  # of the encoded images, in the parquet files
    label_column: str = "label"
    crop: bool = False  # images come in many sizes and are scaled and cropped to `shape`
    embedded: bool = False  # it comes with scikit-learn, and needs no files

    @property
    def mode(self) -> str:
        """What PIL calls images of so many channels."""
        return "L" if self.shape[0] == 1 else "RGB"


DATASETS = (
    DatasetSpec("digits", 10, (1, 8, 8), embedded=True),
    DatasetSpec("cifar10", 10, (3, 32, 32), image_column="img"),
    DatasetSpec("fashion_mnist", 10, (1, 28, 28)),
    DatasetSpec("caltech101", 101, (3, 128, 128), crop=True),
)


@dataclass(frozen=True, eq=False)
class _Split:
    """The training or the test images of a set: labels in memory, images on demand."""

    labels: Ints
    read: Callable[[Ints], torch.Tensor]

    def take(self, rows: Ints) -> Examples:
        return Examples(self.read(rows), torch.from_numpy(self.labels[rows]))


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

    Args:
        name: one of `DATASETS`.
        division: says what the shares are.
        data_dir: holds ``<name>/train.parquet`` and ``<name>/test.parquet``, or those two files
            themselves. ``digits`` comes with scikit-learn and needs none.

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

    ``samples`` loads only so many, always the same ones in the same order; None loads all.

    Raises:
        ConfigError: ``name`` is none of `DATASETS`, or ``samples`` is more than there are.
        DataError: the data set is not there or not what it should be.
    """
    split = _open(get(name), "test", data_dir)
    rows = _subset(len(split.labels), samples, _TEST_SUBSET_SEED, f"test images of {name}")
    return split.take(rows)


def hold_out(labels: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Return the rows to train with and those to test with, each in a seeded order.

    Both have the classes in the same proportions. They are the rows of scikit-learn's
    `train_test_split`, whose import takes seconds. ``labels`` has the shape (n,).
    """
    rng = generator(_HOLD_OUT_SEED)
    tested = math.ceil(TEST_SHARE * len(labels))
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


def read_table(name: str) -> tuple[_Numbers, Ints]:
    """Return a table as `sklearn.datasets.load_<name>` has it.

    Args:
        name: one of `TABLES`.

    Returns:
        The features as they were measured, shape (rows, features), and the class of each row.

    Raises:
        DataError: scikit-learn has no such file.
        MissingPackage: scikit-learn is not installed here.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise MissingPackage(f"the data {extras.missing('sklearn')}")
    # A first line has the counts of rows and features, and the names of classes.
    file, header = ("digits.csv.gz", 0) if name == "digits" else (f"{name}.csv", 1)
    path = Path(found.submodule_search_locations[0], "datasets", "data", file)
    with cannot(f"read {path} of scikit-learn", DataError):
        rows = np.loadtxt(path, delimiter=",", skiprows=header)
    return rows[:, :-1], rows[:, -1].astype(np.int64)


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
    if spec.embedded:
        return _open_digits(split)
    if data_dir is None:
        raise DataError(f"{spec.name} needs --data-dir, a folder with its {split}.parquet")
    path = find_parquet(spec, split, data_dir)
    return _Split(_labels(spec, path), lambda rows: torch.from_numpy(_images(spec, path, rows)))


def _open_digits(split: str) -> _Split:
    images, labels = read_table("digits")
    pixels = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)  # they are 0 ... 16
    train, test = hold_out(labels)
    rows = train if split == "train" else test
    return _Split(labels[rows], lambda wanted: torch.from_numpy(pixels[rows[wanted]]))


@contextmanager
def _reading(spec: DatasetSpec, path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as err:  # of any kind: a damaged file fails in Arrow, in Pillow or here
        raise DataError(f"{path} has no images of {spec.name}: {first_line(err)}") from err


def _file(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keeps 30 MB that are free
    return pq.ParquetFile(path, pre_buffer=False)


def _labels(spec: DatasetSpec, path: Path) -> Ints:
    """Return the labels of all images of a file, int64 [N]."""
    with _reading(spec, path):
        # `read_table` and `to_numpy` would import pandas, for 45 MB.
        column = _file(path).read([spec.label_column], use_threads=False).column(0)
        labels = np.array(column.to_pylist())
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= spec.num_classes:
            raise ValueError(f"labels are not 0 ... {spec.num_classes - 1}")
    return labels.astype(np.int64)


def _images(spec: DatasetSpec, path: Path, rows: Ints) -> npt.NDArray[np.uint8]:
    """Return the images of ``rows``, int64 [N], decoded: [N, C, H, W]."""
    x = np.empty((len(rows), *spec.shape), dtype=np.uint8)
    order, start = np.argsort(rows), 0
    ordered = rows[order]
    with _reading(spec, path):
        columns = [spec.image_column]
        for batch in _file(path).iter_batches(_BATCH, columns=columns, use_threads=False):
            low, high = np.searchsorted(ordered, (start, start + len(batch)))
            for place in order[low:high]:
                x[place] = _pixels(spec, batch.column(0)[int(rows[place]) - start].as_py()["bytes"])
            start += len(batch)
    return x


def _pixels(spec: DatasetSpec, encoded: bytes) -> npt.NDArray[np.uint8]:
    """Return an encoded image as [C, H, W]."""
    from PIL import Image, ImageOps

    channels, height, width = spec.shape
    image = ImageOps.exif_transpose(Image.open(BytesIO(encoded))).convert(spec.mode)
    if spec.crop:  # the short side to size, then the middle
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    elif image.size != (width, height):
        raise ValueError(f"an image has {image.width}x{image.height} pixels, not {width}x{height}")
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)
