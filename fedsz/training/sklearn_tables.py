"""The tables that come with scikit-learn, read from its files: its import takes seconds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fedsz import extras
from fedsz.errors import DataError, MissingPackage, cannot

TABLES: Final = ("breast_cancer", "digits", "iris", "wine", "diabetes")  # diabetes: a regression
_Numbers = npt.NDArray[np.float64]


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
