"""What is held out, and scikit-learn's tables: both without importing scikit-learn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsz.errors import DataError, MissingPackage
from fedsz.training.datasets import TABLES, hold_out, read_table
from tests.project.test_imports import modules_after

if TYPE_CHECKING:
    from pathlib import Path


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=60, max_size=400))
def test_rows_are_those_of_scikit_learn(classes: list[int]) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    labels = np.array([*range(6), *range(6), *classes])  # it refuses a class of one

    train, test = hold_out(labels)

    theirs = selection.train_test_split(
        np.arange(len(labels)),
        test_size=0.2,
        stratify=labels,
        random_state=101,
    )
    np.testing.assert_array_equal(train, theirs[0])
    np.testing.assert_array_equal(test, theirs[1])


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_that_scikit_learn_loads(name: str) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)

    features, targets = read_table(name)

    np.testing.assert_array_equal(features, x)
    np.testing.assert_array_equal(targets, y)


def test_tables_without_scikit_learn_or_its_file_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # the only folder of packages
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    with pytest.raises(MissingPackage, match=r"pip install 'fedsz\[train\]'"):
        read_table("breast_cancer")
    (tmp_path / "sklearn").mkdir()
    sys.path_importer_cache.clear()
    with pytest.raises(DataError, match=r"cannot read .*breast_cancer\.csv of scikit-learn"):
        read_table("breast_cancer")


def test_tasks_load_their_data_without_packages_that_containers_lack() -> None:
    pytest.importorskip("torch")
    used = modules_after(
        "from fedsz.training.options import RunConfig; from fedsz.training.task import load_task;"
        " [load_task(RunConfig(task=task)).load_test() for task in ('images', 'tabular')]"
    )

    assert not {"sklearn", "scipy", "pandas", "PIL", "pyarrow"} & used
