"""How much code an encoder takes: python -m benchmarks.c_library_size, from the repository's root.

Compiles libfedsz with FEDSZ_ENCODER_ONLY and FEDSZ_FLOAT32_ONLY for each machine whose compiler is
here, and links the smallest sender, compressors/library/smallest.c. Adds up what the linker's map
says of libfedsz in it: code with its constants, and tables for exceptions. Prints the rows of
docs/guides/c-library.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from compressors.variants import build, missing

SECTION: Final = re.compile(
    r"^ \.(\w+)[\w.$]*\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) \S*libfedsz\.a\(", re.MULTILINE
)
CODE: Final = ("text", "rodata", "data")
UNWINDING: Final = ("ARM", "gcc_except_table", "eh_frame")  # what exceptions need to find their way
# By the name of a machine, the build for it.
MACHINES: Final = {"aarch64": "encoder-aarch64", "ARM Cortex-M4": "encoder-cortex-m4"}


def size_of(map_file: Path, kinds: Sequence[str]) -> int:
    """Return the bytes of libfedsz in such sections that a linker has left in a program."""
    text = map_file.read_text()
    text = text[text.index("Linker script and memory map") :]
    return sum(
        int(size, 16)
        for kind, address, size in SECTION.findall(text)
        if kind in kinds and int(address, 16)
    )


def map_of(name: str) -> Path:
    """Return the linker's map of the smallest sender in a build."""
    return build(name) / "compressors" / "library" / "smallest.map"


def main() -> None:
    """Print a row for each machine whose compiler is here."""
    print("| machine | code | tables |\n| --- | ---: | ---: |")
    for machine, name in MACHINES.items():
        if not missing(name):
            made = map_of(name)
            print(f"| {machine} | {size_of(made, CODE):,} | {size_of(made, UNWINDING):,} |")


if __name__ == "__main__":
    main()
