"""Builds of the native code that tests run: python -m compressors.variants [NAME ...].

Each build lies in build/native/NAME. It is made again only if a source, a flag or the compiler has
changed. Without a name, this makes every build that the compilers of this machine allow.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build" / "native"
SOURCES: Final = {".c", ".cpp", ".h", ".hpp", ".in", ".map", ".txt"}


class BuildFailed(Exception):
    """CMake or a compiler failed; the text has what they said."""


@dataclass(frozen=True)
class Machine:
    """A machine to compile for: its compiler and its emulator, as Debian names them.

    Attributes:
        compiler: the command, with `{}` in place of gcc or g++; "" for the one that CMake finds.
        system, processor: as CMake names them.
        emulators: commands that run its programs, of which one is enough.
        options: further definitions for CMake.
    """

    compiler: str = ""
    system: str = ""
    processor: str = ""
    emulators: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def cxx(self) -> str:
        """The command of the C++ compiler."""
        return self.compiler.format("g++") or os.environ.get("CXX", "c++")

    @property
    def emulator(self) -> str:
        """The path of an emulator, or "" if there is none or none is needed."""
        return next(filter(None, map(shutil.which, self.emulators)), "")

    @property
    def definitions(self) -> dict[str, str]:
        """What CMake must know of the machine."""
        if not self.compiler:
            return {}
        return {
            "CMAKE_SYSTEM_NAME": self.system,
            "CMAKE_SYSTEM_PROCESSOR": self.processor,
            "CMAKE_C_COMPILER": str(shutil.which(self.compiler.format("gcc"))),
            "CMAKE_CXX_COMPILER": str(shutil.which(self.cxx)),
            **self.options,
        }

    def command(self, program: Path, *arguments: str) -> list[str]:
        """Return the command that runs a program of this machine on this one."""
        if self.system == "Windows":
            program = program.with_suffix(".exe")
        if self.system != "Generic":
            return [*filter(None, [self.emulator]), str(program), *arguments]
        passed = "".join(f",arg={argument}" for argument in ("program", *arguments))
        semihosting = f"enable=on,target=native{passed}"
        quiet = ("-display", "none", "-monitor", "none", "-serial", "none")
        board = ("-M", "mps2-an386", *quiet, "-semihosting-config", semihosting)
        return [self.emulator, *board, "-kernel", str(program)]


HERE: Final = Machine()
AARCH64: Final = Machine(
    "aarch64-linux-gnu-{}", "Linux", "aarch64", ("qemu-aarch64", "qemu-aarch64-static")
)
WINDOWS: Final = Machine(
    "x86_64-w64-mingw32-{}-posix", "Windows", "AMD64", ("wine64", "wine", "/usr/lib/wine/wine64")
)
CORTEX_M4: Final = Machine(
    "arm-none-eabi-{}",
    "Generic",
    "arm",
    ("qemu-system-arm",),
    {
        "CMAKE_C_FLAGS": "-mcpu=cortex-m4 -mthumb",
        "CMAKE_CXX_FLAGS": "-mcpu=cortex-m4 -mthumb",
        "CMAKE_EXE_LINKER_FLAGS": "--specs=rdimon.specs",
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",
    },
)


@dataclass(frozen=True)
class Variant:
    """One way to compile the native code.

    Attributes:
        targets: what CMake builds.
        machine: what it is compiled for.
        options: definitions for CMake.
    """

    targets: tuple[str, ...]
    machine: Machine
    options: Mapping[str, str]


# Without the checks that make compilers twice as slow; make fuzz has them.
_SANITIZED: Final = (
    "-O1 -g -fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow,vptr "
    "-fno-sanitize-recover=all"
)
_PROGRAMS: Final = ("program", "reads", "portable")
_EVERYTHING: Final = {"FEDSZ_LIBRARY": "ON", "FEDSZ_PORTABLE": "ON"}
_ENCODER: Final = {"FEDSZ_LIBRARY": "ON", "FEDSZ_ENCODER_ONLY": "ON"}
_FLOAT32: Final = {**_ENCODER, "FEDSZ_FLOAT32_ONLY": "ON"}
_SMALLEST: Final = ("program", "smallest")

VARIANTS: Final = {
    "library": Variant(
        ("all", "program", "reads"), HERE, {"FEDSZ_LIBRARY": "ON", "CMAKE_INSTALL_LIBDIR": "lib"}
    ),
    "encoder": Variant(("program",), HERE, _ENCODER),
    "encoder-float32": Variant(("program",), HERE, _FLOAT32),
    "encoder-aarch64": Variant(_SMALLEST, AARCH64, _FLOAT32),
    "encoder-cortex-m4": Variant(_SMALLEST, CORTEX_M4, _FLOAT32),
    "sanitized": Variant(
        (*_PROGRAMS, "checks"),
        HERE,
        {
            **_EVERYTHING,
            "CMAKE_BUILD_TYPE": "None",
            "CMAKE_C_FLAGS": _SANITIZED,
            "CMAKE_CXX_FLAGS": f"{_SANITIZED} -D_GLIBCXX_ASSERTIONS",
        },
    ),
    "aarch64": Variant(_PROGRAMS, AARCH64, _EVERYTHING | {"FEDSZ_ZSTD_LIBRARY": "NOTFOUND"}),
    "windows": Variant(_PROGRAMS, WINDOWS, _EVERYTHING | {"FEDSZ_ZSTD_LIBRARY": "NOTFOUND"}),
}


def missing(name: str) -> str:
    """Return what a build needs and this machine has not, or ""."""
    machine = VARIANTS[name].machine
    needed = [command for command in ("cmake", machine.cxx) if not shutil.which(command)]
    if not needed and not name.startswith("encoder"):
        if machine.compiler and not _zlib_of(machine):
            needed.append(f"zlib for {machine.cxx}")
        if not machine.compiler and not _compiles("#include <zlib.h>", "-fsyntax-only"):
            needed.append("zlib.h")
        if name == "sanitized" and not _compiles("int main() {}", *_SANITIZED.split()):
            needed.append("a compiler with sanitizers")
    return " and ".join(needed)


def build(name: str) -> Path:
    """Make a build if it is out of date, and return its folder.

    Raises:
        BuildFailed: CMake or the compiler failed.
    """
    variant, folder = VARIANTS[name], FOLDER / name
    machine = variant.machine
    options = {**machine.definitions, **variant.options}
    if name in ("aarch64", "windows"):
        options |= _zlib_of(machine)
    said = subprocess.run([machine.cxx, "--version"], capture_output=True, check=True).stdout
    flags = hashlib.sha256(repr((said, options, variant.targets)).encode()).hexdigest()
    wanted, stamp = f"{flags} {_sources()}", folder / "built"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may build the same
        found = stamp.read_text() if stamp.exists() else ""
        if found == wanted:
            return folder
        if found.partition(" ")[0] != flags:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        stamp.write_text(f"{flags} unfinished")
        defined = [f"-D{key}={value}" for key, value in options.items()]
        _run("cmake", "-S", str(ROOT), "-B", str(folder), *defined)
        jobs = str(os.cpu_count() or 1)
        _run("cmake", "--build", str(folder), "-j", jobs, "--target", *variant.targets)
        stamp.write_text(wanted)
    return folder


@cache
def _sources() -> str:
    """Return a digest of all that a build reads."""
    paths = sorted(p for p in (ROOT / "compressors").rglob("*") if p.suffix in SOURCES)
    digest = hashlib.sha256()
    for path in (ROOT / "CMakeLists.txt", ROOT / "pyproject.toml", *paths):
        digest.update(f"{path.relative_to(ROOT)} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _zlib_of(machine: Machine) -> dict[str, str]:
    """Return where a cross-compiler has zlib, or nothing."""
    asked = [machine.cxx, "-print-file-name=libz.a"]
    library = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    if not library.is_absolute():
        return {}
    own = library.resolve().parent.parent / "include"
    include = own if (own / "zlib.h").exists() else Path("/usr/include")
    return {"ZLIB_LIBRARY": str(library), "ZLIB_INCLUDE_DIR": str(include)}


def _compiles(source: str, *flags: str) -> bool:
    """Return whether the compiler of this machine takes a program and these flags."""
    asked = [HERE.cxx, *flags, "-x", "c++", "-", "-o", os.devnull]
    done = subprocess.run(asked, input=source.encode(), capture_output=True, check=False)
    return done.returncode == 0


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def main() -> None:
    """Make the builds that the command line names, or all that can be made here."""
    for name in sys.argv[1:] or VARIANTS:
        if why := missing(name):
            print(f"{name}: not built, for there is no {why}")
            continue
        began = time.monotonic()
        print(f"{name}: ", end="", flush=True)
        build(name)
        print(f"build/native/{name}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
