"""The filters in a job that NVFlare's recipes make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvflare.recipe.spec import Recipe

from fedsz.nvflare.client_filter import FedSZClientFilter
from fedsz.nvflare.server_filter import FedSZServerFilter


def add_fedsz(
    recipe: Recipe,
    *,
    tasks: Sequence[str] = ("train",),
    initial: str | None = None,
    **settings: Any,
) -> None:
    """Compress what the tasks of a recipe send, both ways.

    Filters of a task run in the order in which they are added. So add those that change a model,
    such as differential privacy, before: on a way out fedsz should be the last.

    Args:
        recipe: of any algorithm whose tasks carry WEIGHTS or WEIGHT_DIFF.
        tasks: their names.
        initial: a .safetensors file of the first model, where all sites have it at this path; see
            `FedSZClientFilter`.
        settings: of `FedSZServerFilter`; without any, the policy "auto" decides all.

    Raises:
        ConfigError: a setting is out of range or does not exist.
        CodecUnavailable: a codec's library is not installed here.
    """
    server = FedSZServerFilter(**settings, shared_initial=initial is not None)
    client, names = FedSZClientFilter(initial), list(tasks)
    # NVFlare copies what it takes for an app's own sources into the job; fedsz is of the sites, and
    # a copy would lack its native modules. The recipe has no public way to say so.
    job = recipe._job
    job.set_app_packages([*job.job.app_packages, "fedsz"])
    recipe.add_server_output_filter(server, tasks=names)
    recipe.add_server_input_filter(server, tasks=names)
    recipe.add_client_input_filter(client, tasks=names)
    recipe.add_client_output_filter(client, tasks=names)
