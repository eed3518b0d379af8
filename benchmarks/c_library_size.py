"""How much code an encoder takes: python -m benchmarks.c_library_size, from the repository's root.

Compiles libfedsz with FEDSZ_ENCODER_ONLY and FEDSZ_FLOAT32_ONLY for each machine whose compiler is
here, and links the smallest sender, compressors/library/smallest.c. Adds up what the linker's map
says of libfedsz in it: code with its constants, and tables for exceptions. Prints the rows of
docs/guides/c-library.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build"
SECTION: Final = re.compile(
    r"^ \.(\w+)[\w.$]*\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) \S*libfedsz\.a\(", re.MULTILINE
)
CODE: Final = ("text", "rodata", "data")
UNWINDING: Final = ("ARM", "gcc_except_table", "eh_frame")  # what exceptions need to find their way


class Machine(NamedTuple):
    """A machine to compile for: the prefix of its compiler, and CMake's words for it."""

    name: str
    prefix: str
    system: str
    flags: str = ""
    link: str = ""


MACHINES: Final = (
    Machine("aarch64", "aarch64-linux-gnu-", "Linux"),
    Machine(
        "ARM Cortex-M4",
        "arm-none-eabi-",
        "Generic",
        "-mcpu=cortex-m4 -mthumb",
        "--specs=rdimon.specs",
    ),
)


def configure(machine: Machine, *targets: str, float32_only: bool) -> Path:
    """Compile programs for a machine, and return their folder."""
    folder = FOLDER / f"encoder-{machine.prefix}{'float32' if float32_only else 'all'}"
    processor = machine.prefix.partition("-")[0]
    for step in (
        [
            *("-S", ROOT, "-B", folder, "-DFEDSZ_LIBRARY=ON", "-DFEDSZ_ENCODER_ONLY=ON"),
            f"-DFEDSZ_FLOAT32_ONLY={'ON' if float32_only else 'OFF'}",
            f"-DCMAKE_SYSTEM_NAME={machine.system}",
            f"-DCMAKE_SYSTEM_PROCESSOR={processor}",
            f"-DCMAKE_C_COMPILER={machine.prefix}gcc",
            f"-DCMAKE_CXX_COMPILER={machine.prefix}g++",
            f"-DCMAKE_C_FLAGS={machine.flags}",
            f"-DCMAKE_CXX_FLAGS={machine.flags}",
            f"-DCMAKE_EXE_LINKER_FLAGS={machine.link}",
            "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
        ],
        ["--build", folder, "-j", "2", "--target", *targets],
    ):
        done = subprocess.run(["cmake", *step], capture_output=True, text=True, check=False)  # noqa: S607
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
    return folder / "compressors" / "library"


def size_of(map_file: Path, kinds: Sequence[str]) -> int:
    """Return the bytes of libfedsz in such sections that a linker has left in a program."""
    text = map_file.read_text()
    text = text[text.index("Linker script and memory map") :]
    return sum(
        int(size, 16)
        for kind, address, size in SECTION.findall(text)
        if kind in kinds and int(address, 16)
    )


def here() -> Iterator[Machine]:
    """Yield the machines whose compilers are here."""
    for machine in MACHINES:
        if shutil.which(f"{machine.prefix}g++"):
            yield machine


def main() -> None:
    """Print a row for each machine."""
    if shutil.which("cmake") is None:
        sys.exit("needs cmake")
    print("| machine | code | tables |\n| --- | ---: | ---: |")
    for machine in here():
        made = configure(machine, "smallest", float32_only=True) / "smallest.map"
        print(f"| {machine.name} | {size_of(made, CODE):,} | {size_of(made, UNWINDING):,} |")


if __name__ == "__main__":
    main()
