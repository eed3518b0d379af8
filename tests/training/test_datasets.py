from __future__ import annotations

import io
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedsz.errors import ConfigError, DataError
from fedsz.training import datasets
from fedsz.training.datasets import DATASETS, PARTITIONERS, DatasetSpec, Division
from fedsz.training.examples import Examples
from fedsz.training.seeding import generator, seed_of

in_folders = pytest.mark.parametrize(
    "spec", [spec for spec in DATASETS if not spec.embedded], ids=lambda spec: spec.name
)


def digits(partition: int = 0, num_partitions: int = 5, **options: Any) -> Examples:
    division = Division(num_partitions, **options)
    return datasets.open_shares("digits", division, data_dir=None)(partition)


def keys(images: Examples) -> list[tuple[bytes, int]]:
    return [(x.numpy().tobytes(), int(y)) for x, y in zip(images.x, images.y, strict=True)]


def same(a: Examples, b: Examples) -> bool:
    return torch.equal(a.x, b.x) and torch.equal(a.y, b.y)


def write_images(path: Path, spec: DatasetSpec, *, size: int, labels: list[int]) -> None:
    """Write a parquet file as other tools do: encoded bytes, no word that they are images."""
    rng = np.random.default_rng(0)
    mode = "L" if spec.shape[0] == 1 else "RGB"
    shape = (size, size) if mode == "L" else (size, size, 3)
    encoded = []
    for _ in labels:
        png = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(png, "png")
        encoded.append({"bytes": png.getvalue(), "path": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = {spec.image_column: pa.struct({"bytes": pa.binary(), "path": pa.string()})}
    columns = {spec.image_column: encoded, spec.label_column: labels}
    schema = pa.schema({**kinds, spec.label_column: pa.int64()})
    pq.write_table(pa.table(columns, schema), path)


# Shares


@pytest.mark.parametrize("samples", [None, 300])
@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_shares_are_disjoint_and_cover_the_subset(partitioner: str, samples: int | None) -> None:
    whole = digits(num_partitions=1, samples=samples)
    assert keys(whole) == keys(digits(num_partitions=1))[: len(whole)]
    shares = [digits(i, partitioner=partitioner, samples=samples) for i in range(5)]

    assert len(whole) == (samples or 1437)
    assert sorted(key for share in shares for key in keys(share)) == sorted(keys(whole))
    assert len(set(keys(whole))) == len(whole)  # so equal lists mean disjoint shares
    if partitioner == "iid":
        assert {len(share) for share in shares} == {len(whole) // 5, -(-len(whole) // 5)}
        assert all(len(share.y.unique()) == 10 for share in shares)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_seed_decides_shares_opened_together_or_alone(partitioner: str) -> None:
    shares = datasets.open_shares("digits", Division(5, partitioner, seed=3), data_dir=None)

    for index in (4, 0, 2):
        assert same(shares(index), digits(index, partitioner=partitioner, seed=3))
        assert not same(shares(index), digits(index, partitioner=partitioner, seed=8))


@pytest.mark.parametrize(("partitioner", "crc"), [("iid", 158012350), ("dirichlet", 2514289542)])
def test_shares_are_those_of_every_other_machine(partitioner: str, crc: int) -> None:
    # A client whose numpy or scikit-learn divides differently would train on others' images.
    share = digits(1, partitioner=partitioner, samples=1000)
    assert zlib.crc32(share.x.numpy().tobytes()) == crc


def test_draws_are_promised_to_stay() -> None:
    """NumPy may change what methods of `default_rng` draw, and Python what ``hash`` returns."""
    assert generator(7).permutation(8).tolist() == [2, 5, 0, 6, 3, 1, 4, 7]
    assert (seed_of(0, 1), seed_of(3, 2, 1)) == (3016054550, 2236055463)
    folder = Path(datasets.__file__).parent
    for path in folder.glob("*.py"):
        assert not re.search(r"default_rng\(|[^_]\bhash\(", path.read_text("utf-8")), path


def test_dirichlet_shares_differ_more_the_smaller_alpha_is() -> None:
    def skew(alpha: float) -> float:
        """How far the shares' class distributions are from the whole's, in [0, 1]."""
        far, division = [], Division(5, "dirichlet", alpha)
        shares = datasets.open_shares("digits", division, data_dir=None)
        for i in range(5):
            y = shares(i).y
            far.append((y.bincount(minlength=10) / len(y) - 0.1).abs().sum().item() / 2)
        return sum(far) / len(far)

    assert skew(0.1) > 0.5 > skew(1.0) > 0.2 > skew(1000.0)


@pytest.mark.parametrize("alpha", [0.05, 1, 1e300])
@pytest.mark.filterwarnings("error")
def test_dirichlet_leaves_no_share_empty(alpha: float) -> None:
    division = Division(10, "dirichlet", alpha, samples=200)
    load = datasets.open_shares("digits", division, data_dir=None)
    sizes = [len(load(i)) for i in range(10)]
    assert sum(sizes) == 200
    assert min(sizes) > 0


@pytest.mark.parametrize("alpha", [1e-300, 1e-3])
@pytest.mark.filterwarnings("error")
def test_dirichlet_that_must_leave_a_share_empty(alpha: float) -> None:
    with pytest.raises(DataError, match=f"alpha {alpha} leave one of 30 partitions empty"):
        digits(0, 30, partitioner="dirichlet", alpha=alpha, samples=200)


# Examples


def test_digits() -> None:
    train, test = digits(num_partitions=1), datasets.load_test("digits", data_dir=None)

    assert (len(train), len(test)) == (1437, 360)
    assert not set(keys(train)) & set(keys(test))
    assert test.x.unique().tolist() == np.rint(np.arange(17) * 255 / 16).tolist()
    assert test.y.bincount().min() >= 34


@in_folders
def test_decoded_images(data_dir: Path, spec: DatasetSpec) -> None:
    train = datasets.open_shares(spec.name, Division(4, samples=120), data_dir=data_dir)(1)
    test, same_test = (
        datasets.load_test(spec.name, data_dir=folder, samples=40)
        for folder in (data_dir, data_dir / spec.name)
    )

    assert same(test, same_test)
    for images, n in ((train, 30), (test, 40)):
        assert len(images) == n
        x = images.x
        assert (x.dtype, images.y.dtype) == (torch.uint8, torch.int64)
        assert tuple(x.shape) == (n, *spec.shape)
        assert x.is_contiguous()
        assert len(set(keys(images))) == n
        assert 0 <= images.y.min() <= images.y.max() < spec.num_classes


@in_folders
def test_test_images_are_those_in_the_file(
    data_dir: Path, spec: DatasetSpec, tmp_path: Path
) -> None:
    table = pq.read_table(data_dir / spec.name / "test.parquet")
    table = table.take(list(range(0, len(table), len(table) // 30)))
    pq.write_table(table, tmp_path / "test.parquet")
    rows = table.to_pylist()
    images = datasets.load_test(spec.name, data_dir=tmp_path)
    loaded = dict(keys(images))

    assert len(images) == len(rows)
    for row in rows:
        image = Image.open(io.BytesIO(row[spec.image_column]["bytes"]))
        if spec.crop:
            scale = 128 / min(image.size)
            sides = [round(side * scale) for side in image.size]
            image = image.resize(sides, Image.Resampling.BILINEAR)
            left, top = ((side - 128) / 2 for side in image.size)
            # Scaled before it is cropped and by whole pixels, so near, not equal.
            middle = np.asarray(image.crop((left, top, left + 128, top + 128)), dtype=float)
            error = np.abs(images.x.numpy().transpose(0, 2, 3, 1) - middle).mean((1, 2, 3))
            assert images.y[error.argmin()] == row[spec.label_column]
            assert error.min() < np.median(error) / 5
        else:
            pixels = np.asarray(image).reshape(spec.shape[1], spec.shape[2], -1)
            assert loaded[pixels.transpose(2, 0, 1).tobytes()] == row[spec.label_column]


def test_files_written_by_other_tools(tmp_path: Path) -> None:
    spec = datasets.get("fashion_mnist")
    folder = tmp_path / "with [odd] *chars*"
    write_images(folder / "fashion_mnist" / "test.parquet", spec, size=28, labels=[3, 1, 4])

    assert sorted(datasets.load_test(spec.name, data_dir=folder).y.tolist()) == [1, 3, 4]


# Refusals


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"partition": 5}, ConfigError, r"partition must lie in \[0, 5\), got 5"),
        ({"partition": -1}, ConfigError, r"partition must lie in \[0, 5\), got -1"),
        ({"num_partitions": 0}, ConfigError, "num_partitions must be at least 1, got 0"),
        ({"partitioner": "idd"}, ConfigError, "no partitioner 'idd'; have iid, dirichlet"),
        ({"samples": 2000}, ConfigError, r"samples must lie in \[1, 1437\].* got 2000"),
        ({"samples": 0}, ConfigError, "got 0"),
        ({"num_partitions": 6, "samples": 5}, DataError, "5 images of digits cannot fill 6 part"),
    ],
)
def test_shares_that_cannot_be(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        digits(**options)


@pytest.mark.parametrize(
    ("size", "labels", "why"),
    [
        (28, [], r""),
        (28, [0, 10], r"labels are not 0 \.\.\. 9"),
        (28, [0, -1], r"labels are not 0 \.\.\. 9"),
        (28, [0, None], r"labels are not 0 \.\.\. 9"),
        (32, [0, 1], "an image has 32x32 pixels, not 28x28"),
    ],
)
def test_file_that_is_not_what_it_should_be(
    tmp_path: Path, size: int, labels: list[int], why: str
) -> None:
    spec = datasets.get("fashion_mnist")
    write_images(tmp_path / "test.parquet", spec, size=size, labels=labels)
    with pytest.raises(DataError, match=rf"test\.parquet has no images of {spec.name}: {why}"):
        datasets.load_test(spec.name, data_dir=tmp_path)


@pytest.mark.parametrize("image", [None, {"bytes": b"not a picture"}, {"bytes": None}, 1.5])
def test_files_that_are_not_there_or_have_no_images(tmp_path: Path, image: Any) -> None:
    with pytest.raises(ConfigError, match=r"samples must lie in \[1, 360\].* got 361"):
        datasets.load_test("digits", data_dir=None, samples=361)
    with pytest.raises(DataError, match="cifar10 needs --data-dir, a folder"):
        datasets.load_test("cifar10", data_dir=None)
    where = f"expected train.parquet and test.parquet in {tmp_path / 'cifar10'}"
    with pytest.raises(DataError, match=where):
        datasets.load_test("cifar10", data_dir=tmp_path)
    path = tmp_path / "test.parquet"
    path.write_bytes(b"PAR1, but no more")
    if image is not None:
        pq.write_table(pa.table({"img": [image], "label": [0]}), path)
    with pytest.raises(DataError, match=r"test\.parquet has no images of cifar10: "):
        datasets.load_test("cifar10", data_dir=tmp_path)
