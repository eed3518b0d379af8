"""What scripts/release.py writes and refuses; the rest of it builds wheels for minutes."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

release = pytest.importorskip("scripts.release", reason="needs scripts")
pytestmark = [
    pytest.mark.repository,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]

READY = {
    "pyproject.toml": '[project]\nversion = "1.2.3"\n',
    "CHANGELOG.md": "# Changelog\n\n## 1.2.3 - 2026-12-01\n\n- New.\n\n## 1.2.2 - 2026-11-01\n",
    "CITATION.cff": 'version: 1.2.3\ndate-released: "2026-12-01"\n',
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that could be released."""
    for name, text in READY.items():
        (tmp_path / name).write_text(text)
    commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-m", "all")


def git(folder: Path, *arguments: str) -> None:
    command = ["git", *arguments]
    subprocess.run(command, cwd=folder, check=True)


def test_a_clean_checkout_of_one_version_is_released(checkout: Path) -> None:
    assert release.problems(checkout) == []
    assert release.version_of(checkout) == "1.2.3"


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_a_tree_with_changes_is_not(checkout: Path, name: str) -> None:
    with (checkout / name).open("a") as file:
        file.write("\n")

    assert release.problems(checkout) == [f"the tree is not clean: {name}"]


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("pyproject.toml", "1.2.3", "1.2.4", "has version 1.2.4, CHANGELOG.md begins with 1.2.3"),
        ("CHANGELOG.md", "2026-12-01", "unreleased", "no date for 1.2.3: unreleased"),
        ("CHANGELOG.md", "## 1.2.3 - 2026-12-01", "", "begins with 1.2.2"),
        ("CITATION.cff", "1.2.3", "1.2.2", "has version 1.2.2, not 1.2.3"),
        ("CITATION.cff", "2026-12-01", "2026-11-01", "has date-released 2026-11-01, not 2026-12"),
        ("CITATION.cff", "date-released", "date", "has date-released none, not 2026-12-01"),
    ],
)
def test_versions_and_dates_that_differ_are_refused(
    checkout: Path, name: str, old: str, new: str, problem: str
) -> None:
    (checkout / name).write_text(READY[name].replace(old, new))
    commit(checkout)

    assert any(problem in line for line in release.problems(checkout))


CITED = 'date-released: "2026-12-01"\n'


@pytest.mark.parametrize("cited", ["", CITED])  # a first release has no date yet
def test_a_checkout_that_was_prepared_and_committed_is_released(checkout: Path, cited: str) -> None:
    notes = READY["CHANGELOG.md"].replace("1.2.3 - 2026-12-01", "1.2.3 - unreleased")
    (checkout / "CHANGELOG.md").write_text(notes)
    (checkout / "CITATION.cff").write_text(READY["CITATION.cff"].replace(CITED, cited))

    release.prepare(checkout, "1.3.0", "2027-01-31")
    commit(checkout)

    assert release.problems(checkout) == []
    assert release.version_of(checkout) == "1.3.0"
    assert "## 1.3.0 - 2027-01-31\n" in (checkout / "CHANGELOG.md").read_text()
    cited = (checkout / "CITATION.cff").read_text()
    assert cited == 'version: 1.3.0\ndate-released: "2027-01-31"\n'


def test_a_changelog_without_unreleased_changes_is_not_prepared(checkout: Path) -> None:
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md has no line like"):
        release.prepare(checkout, "1.3.0", "2027-01-31")

    assert {name: (checkout / name).read_text() for name in READY} == READY


def test_a_wheel_is_tested_with_files_that_are_there() -> None:
    names = release.wheel_tests(ROOT)

    assert "tests/codecs/test_golden.py" in names
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_sums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "b.tar.gz").write_bytes(b"sdist")

    release.write_sums(tmp_path)

    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=tmp_path, check=True)
    assert (tmp_path / "SHA256SUMS").read_text().count("\n") == 2


def test_a_device_is_given_a_wheel_of_a_release_and_a_torch_that_it_takes() -> None:
    guide = (ROOT / "docs" / "guides" / "raspberry-pi.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    train = map(Requirement, project["optional-dependencies"]["train"])
    (pattern,) = re.findall(r"dist/(\S+\.whl)", guide)

    (wanted,) = [each.specifier for each in train if each.name == "torch"]
    (torch,) = re.findall(r"torch==\.\*/torch==([\d.]+)/", guide)
    assert torch in wanted
    assert fnmatch("fedsz-0.1.0-cp312-abi3-manylinux_2_34_aarch64.whl", pattern)
    assert not fnmatch(
        "fedsz-0.1.0-cp311-cp311-manylinux_2_34_aarch64.whl", pattern
    )  # pip takes one
