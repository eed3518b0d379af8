"""What the processes of benchmarks.nvflare_rounds import: counters, NVFlare's own on CPUs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs
from nvflare.recipe.spec import Recipe

DOWN, UP = "down", "up"
TASKS: Final = ["train"]


class Counter(Filter):  # type: ignore[misc]
    """Writes down how many bytes the DXO of a message takes, and changes nothing."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Append a line to the file of this direction."""
        from benchmarks.nvflare_rounds import COUNTS

        way = DOWN if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT else UP
        with (Path(os.environ[COUNTS]) / way).open("a") as file:
            file.write(f"{len(fobs.dumps(shareable['DXO']))}\n")
        return shareable


def _on_cpu(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _quantiser(**arguments: Any) -> Filter:
    from nvflare.app_opt.pt.quantization.quantizer import ModelQuantizer

    return ModelQuantizer(**arguments)


def _dequantiser() -> Filter:
    from nvflare.app_opt.pt.quantization.dequantizer import ModelDequantizer

    return ModelDequantizer()


class Quantiser(Filter):  # type: ignore[misc]
    """NVFlare's `ModelQuantizer` on a CPU."""

    def __init__(self, quantization_type: str) -> None:
        super().__init__()
        self.quantization_type = quantization_type
        self._inner = _quantiser(quantization_type=quantization_type)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Do as it does, with arrays whose elements lie in order, as adaquant needs them."""
        torch.Tensor.cuda = _on_cpu  # type: ignore[method-assign]
        data = shareable["DXO"]["data"]
        data.update({name: np.ascontiguousarray(x) for name, x in data.items()})
        return self._inner.process(shareable, fl_ctx)


class Dequantiser(Filter):  # type: ignore[misc]
    """NVFlare's `ModelDequantizer` on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = _dequantiser()

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Do as it does, and return vectors as such: bitsandbytes' CPU code makes rows of them."""
        torch.Tensor.cuda = _on_cpu  # type: ignore[method-assign]
        states = shareable["DXO"]["meta"].get("quant_state", {})
        shapes = {name: tuple(state["shape"]) for name, state in states.items() if "shape" in state}
        whole = self._inner.process(shareable, fl_ctx)
        data = whole["DXO"]["data"]
        data.update({name: data[name].reshape(shape) for name, shape in shapes.items()})
        return whole


def add_own(recipe: Recipe, way: str) -> None:
    """Add NVFlare's own filters to a recipe, as its documentation does."""
    recipe.add_server_output_filter(Quantiser(way), tasks=TASKS)
    recipe.add_client_input_filter(Dequantiser(), tasks=TASKS)
    recipe.add_client_output_filter(Quantiser(way), tasks=TASKS)
    recipe.add_server_input_filter(Dequantiser(), tasks=TASKS)


def count_arrivals(recipe: Recipe) -> None:
    """Count what reaches the server, before the filters that are added to the recipe next."""
    job = recipe._job
    job.set_app_packages([*job.job.app_packages, "benchmarks", "fedsz"])  # not to be copied into it
    recipe.add_server_input_filter(Counter(), tasks=TASKS)


def count_departures(recipe: Recipe) -> None:
    """Count what leaves the server, after the filters that were added before."""
    recipe.add_server_output_filter(Counter(), tasks=TASKS)
