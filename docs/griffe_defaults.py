"""Values of default arguments in the Python reference: "blosclz", and not DEFAULT.lossless.

An extension of Griffe, which mkdocs.yml names.
"""

from __future__ import annotations

from typing import Any

import griffe

from fedsz.core.settings import DEFAULT

PREFIX = "DEFAULT."


class Defaults(griffe.Extension):
    """Replaces defaults that are fields of `fedsz.core.settings.DEFAULT`."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Change the parameters of one function."""
        for parameter in func.parameters:
            written = str(parameter.default)
            if written.startswith(PREFIX):
                parameter.default = repr(getattr(DEFAULT, written.removeprefix(PREFIX)))
