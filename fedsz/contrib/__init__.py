"""Methods, policies and strategies that one paper has, each in a file of its own.

They use the other packages by their public protocols alone, and nothing else imports them but
`fedsz.plugins`, by the names below.
"""

from __future__ import annotations

from typing import Final

# By group, entry points as third parties have them in their pyproject.toml: name and object.
ENTRY_POINTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "fedsz.methods": (
        ("adaptive", "fedsz.contrib.adaptive:Adaptive"),
        ("ecx", "fedsz.contrib.ecx:Ecx"),
        ("dgc", "fedsz.contrib.dgc:Dgc"),
        ("powersgd", "fedsz.contrib.powersgd:PowerSgd"),
        ("atomo", "fedsz.contrib.atomo:Atomo"),
        ("sketch", "fedsz.contrib.sketch:Sketch"),
        ("rtopk", "fedsz.contrib.rtopk:RandomTopK"),
        ("threshold", "fedsz.contrib.threshold:Threshold"),
        ("sbc", "fedsz.contrib.sbc:SparseBinary"),
        ("natural", "fedsz.contrib.natural:Natural"),
        ("uveqfed", "fedsz.contrib.uveqfed:Uveqfed"),
        ("layered", "fedsz.contrib.layered:Layered"),
    ),
    "fedsz.policies": (
        ("schedule", "fedsz.contrib.schedule:Schedule"),
        ("accuracy", "fedsz.contrib.accuracy:Accuracy"),
        ("dc2", "fedsz.contrib.dc2:Dc2"),
        ("layers", "fedsz.contrib.layers:Layers"),
    ),
}
