"""What an installation brings: fedsz alone is small, and what is missing is said in one line."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fedsz
from fedsz import extras, flower_compat
from fedsz.codecs import _uniform
from tests.conftest import ROOT
from tests.project.test_imports import run

CORE_MB: Final = 30  # beside numpy
CLIENT_MB: Final = 320  # of a Flower client, with numpy
UNREAD: Final = {"lib64", "include"}
BYTECODE: Final = 1.8  # times the source of all modules

# Packages that come with what an extra names: Flower, data sets, Jinja.
OF_OTHERS: Final = ("google.protobuf", "PIL", "markupsafe", "ray")

OPTIONAL: Final = [name for extra, names in extras.EXTRAS.items() if extra for name in names]
# A process in which nothing of the extras can be imported, nor what they bring.
ALONE: Final = f"import sys; sys.modules |= dict.fromkeys({[*OPTIONAL, 'h5py', 'pandas']!r})\n"


def project() -> dict[str, list[str]]:
    """Return what fedsz requires: by extra, and as "" without any."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    table = tomllib.loads(text)["project"]
    return {"": table["dependencies"], **table["optional-dependencies"]}


def brought(*names: str) -> set[str]:
    """Return all distributions that pip installs for extras of fedsz, by their dependencies."""
    waiting = [Requirement(line) for name in ("", *names) for line in project()[name]]
    seen: set[str] = set()
    found: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        inside = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if str(wanted) in seen or not inside:
            continue
        seen.add(str(wanted))
        if wanted.name == "fedsz":
            waiting += [Requirement(line) for name in wanted.extras for line in project()[name]]
            continue
        found.add(canonicalize_name(wanted.name))
        try:
            package = distribution(wanted.name)
        except PackageNotFoundError:
            pytest.skip(f"{wanted.name} is not installed here")
        for line in package.requires or ():
            further = Requirement(line)
            kinds = [extra for extra in ("", *wanted.extras) if further.marker]
            if not kinds or any(further.marker.evaluate({"extra": kind}) for kind in kinds):
                further.marker = None
                waiting.append(further)
    return found


def megabytes(names: set[str]) -> float:
    """Return how many MB (10^6 bytes) fedsz and distributions have in site-packages and bin.

    Modules of fedsz count as compiled ones too, which its source may lack. What blosc's wheel has
    in ``lib64`` and ``include``, 5 MB, is a C library that nothing reads.
    """
    listed = [file for name in names for file in distribution(name).files or ()]
    files = {Path(str(file.locate())) for file in listed if not UNREAD & {*file.parts}}
    files |= set(Path(_uniform.__file__).parent.glob("*.so"))
    ours = [file for file in Path(fedsz.__file__).parent.rglob("*.*") if file.suffix != ".pyc"]
    bytecode = sum(BYTECODE * file.stat().st_size for file in ours if file.suffix == ".py")
    return (bytecode + sum(file.stat().st_size for file in {*files, *ours} if file.is_file())) / 1e6


@pytest.mark.repository
def test_fedsz_alone_is_small() -> None:
    names = brought()

    assert not names & {"flwr", "grpcio", "cryptography", "h5py", "hdf5plugin", "torch"}
    assert megabytes(names - {"numpy"}) < CORE_MB


@pytest.mark.repository
def test_a_flower_client_without_torch_fits_on_a_pi() -> None:
    names = brought("flower")

    assert {"flwr", "grpcio", "cryptography", "numpy"} <= names
    assert not names & {"torch", "h5py", "hdf5plugin", "pyarrow"}
    assert megabytes(names) < CLIENT_MB


@pytest.mark.repository
def test_every_package_that_is_imported_is_of_an_extra() -> None:
    """So whatever is missing, the message knows what brings it."""
    used = set()
    for source in (ROOT / "fedsz").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                used |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                used.add((node.module or "").partition(".")[0])
    used -= {*sys.stdlib_module_names, "fedsz", "benchmarks", "compression"}

    known = {name.partition(".")[0] for names in extras.EXTRAS.values() for name in names}
    assert used <= known
    assert known - used == {"ray", "sklearn"}  # Flower imports one; of the other, fedsz reads files


@pytest.mark.repository
def test_an_extra_brings_the_packages_that_it_is_for() -> None:
    known = packages_distributions()
    for extra, packages in extras.EXTRAS.items():
        assert extra in project()
        wanted = {canonicalize_name(Requirement(line).name) for line in project()[extra]}
        for package in packages:
            owners = {canonicalize_name(name) for name in known.get(package.partition(".")[0], [])}
            if owners and package not in OF_OTHERS:
                assert owners & wanted, package


def test_compressing_needs_no_extra(tmp_path: Path) -> None:
    code = ALONE + (
        "import fedsz, numpy as np, ml_dtypes\n"
        "from safetensors.numpy import save_file\n"
        "state = {'w': np.linspace(-1, 1, 5000, dtype='f4'), 'h': np.ones(3, ml_dtypes.bfloat16)}\n"
        "blob = fedsz.compress(state, 1e-2, reference={k: v * 0 for k, v in state.items()})\n"
        "assert fedsz.inspect(blob).ratio > 2\n"
        "for codec in fedsz.codecs.CODECS:\n"
        "    if codec.missing() is None:\n"
        "        blob = fedsz.compress(state, 1e-2, codec=codec if codec.lossy else 'uniform',\n"
        "            lossless='raw' if codec.lossy else codec)\n"
        "        back = fedsz.decompress(blob, as_numpy=True)\n"
        "        assert abs(back['w'] - state['w']).max() <= 2e-2\n"
        "        assert back['h'].dtype == 'bfloat16'\n"
        "        print(codec.name)\n"
        "save_file(state, sys.argv[1])\n"
        "from fedsz.__main__ import main\n"
        "for *command, in (['compress', 'm.safetensors'], ['inspect', 'm.fsz'],\n"
        "                  ['decompress', 'm.fsz', '-o', 'back.safetensors']):\n"
        "    sys.argv[1:] = command\n"
        "    try: main()\n"
        "    except SystemExit as ended: assert not ended.code\n"
    )
    source = tmp_path / "m.safetensors"
    printed = run("-c", f"import os; os.chdir({str(tmp_path)!r})\n{code}", source)

    own = ["raw", "blosclz", "zstd", "zlib", "gzip", "xz", "exponents"]
    own += ["szx", "uniform", "fp16", "int8"]
    assert printed.split()[: len(own)] == own
    spare = (tmp_path / "back.safetensors").stat().st_size - source.stat().st_size
    assert 0 <= spare <= 64  # who has written it


COMMANDS: Final = {
    "server": "flower",
    "client --server a:1": "flower",
    "keys init --host a": "flower",
    "run": "flower",
    "dashboard .": "flower",
    "decisions .": "flower",
    "check m:app --initial m:initial": "flower",
    "compress m.pt": "train",
    "sweep": "report",
    "bench --model cnn": "report",
    "report .": "report",
}


def test_a_command_without_its_extra_is_told_in_one_line() -> None:
    code = ALONE + (
        "import contextlib, io, json\n"
        "from fedsz.__main__ import main\n"
        "told = {}\n"
        "for command in sys.argv[1:]:\n"
        "    sys.argv[1:] = command.split()\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as stderr:\n"
        "        try: main()\n"
        "        except SystemExit as ended: told[command] = [ended.code, stderr.getvalue()]\n"
        "print(json.dumps(told))\n"
    )
    told = json.loads(run("-c", code, *COMMANDS))

    for command, extra in COMMANDS.items():
        status, line = told[command]
        assert (status, line.count("\n")) == (2, 1), line
        assert line.endswith(f": pip install 'fedsz[{extra}]'\n"), line


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import fedsz.flower", "'flwr': pip install 'fedsz[flower]'"),
        ("import fedsz; fedsz.flower", "'flwr': pip install 'fedsz[flower]'"),
        ("import fedsz; fedsz.decompress(fedsz.compress({}))", None),
        (
            "import fedsz, numpy as np; fedsz.decompress(fedsz.compress({'a': np.ones(3)}))",
            "'torch': pip install 'fedsz[train]'",
        ),
        (
            "import fedsz; fedsz.decompress(open(sys.argv[1], 'rb').read())",
            "'zfpy': pip install 'fedsz[baselines]'",
        ),
    ],
    ids=["flower", "flower by name", "nothing", "tensors", "an old stream"],
)
def test_what_is_asked_without_its_extra_is_a_fedsz_error(code: str, says: str | None) -> None:
    stream = Path(__file__).parents[1] / "golden" / "v1-zfp.fsz"
    script = ALONE + (
        f"from fedsz.errors import FedszError\ntry:\n    {code}\n"
        "except FedszError as err:\n    assert isinstance(err, ImportError)\n    print(err)\n"
    )

    assert run("-c", script, stream).strip().endswith(f"needs the package {says}" if says else "")


def package(folder: Path, name: str, source: str) -> Path:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)
    return folder


def test_a_flower_that_is_too_old_is_told_in_one_line(tmp_path: Path) -> None:
    code = (
        "try: import fedsz.flower\n"
        "except ImportError as err: print(type(err).__name__, err, sep=': ')"
    )
    old = package(tmp_path, "flwr", "__version__ = '1.28.0'")
    printed = run("-c", code, path=old).strip()

    says = "Flower 1.28.0 is too old: fedsz needs 1.38 or later: pip install 'fedsz[flower]'"
    assert printed == f"MissingPackage: {says}"


@pytest.mark.repository
def test_a_checkout_that_was_not_built_says_so_in_a_line(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "fedsz", tmp_path / "fedsz", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    says = "fedsz is not built here: run `make run` in the checkout, or `pip install .`"
    # An editable install, as this one may be, finds its native modules for any fedsz.
    alone = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if isinstance(f, type)]; "
    program = "import runpy; sys.argv[1:] = ['codecs']; runpy.run_module('fedsz', None, '__main__')"
    for code, line in (
        ("import fedsz; fedsz.compress", f"fedsz.errors.MissingPackage: {says}"),
        ("import fedsz.codecs", f"fedsz.errors.MissingPackage: {says}"),
        (program, f"fedsz: {says}"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", alone + code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr.splitlines()[-1] == line


def test_imports_that_concern_no_extra_stay_what_they_are() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_yours"), extras.explained():
        __import__("no_such_module_of_yours")


@pytest.mark.repository
def test_the_oldest_flower_is_the_one_that_pip_takes() -> None:
    wanted = [line for lines in project().values() for line in lines if line.startswith("flwr")]
    oldest = ".".join(map(str, flower_compat.OLDEST))

    assert [line for line in wanted if line.startswith(("flwr>", "flwr["))]
    assert all(f">={oldest}," in line for line in wanted)


def test_arrays_of_a_file_come_in_their_order(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    from fedsz.safetensors_file import read_safetensors

    arrays = {f"layer{i}": np.full(3, i, np.float32) for i in (3, 1, 2)}
    save_file(arrays, tmp_path / "m.safetensors")

    found = read_safetensors(tmp_path / "m.safetensors")

    assert list(found) == list(load_file(tmp_path / "m.safetensors"))
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
