"""The state of a `fedsz.core.broadcast.Broadcast` <-> records of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, takewhile
from typing import Any, Final

from flwr.app import ConfigRecord

from fedsz.core.broadcast_state import BroadcastState
from fedsz.flower.records import sealed, streams_of, to_record, views_of

_HISTORY: Final = "history"  # and its number
_GRIDS: Final = "steps"  # the one array of its record


def records_of(state: BroadcastState) -> dict[str, Any]:
    """Return records by what they are of."""
    return {
        "steps": ConfigRecord(dict(state.told)),
        "streams": sealed(state.streams),
        "grids": to_record({_GRIDS: state.grids}),
        "model": to_record(dict(state.model)),
        "residual": to_record(dict(state.residual)),
        **({"anchor": to_record(dict(state.anchor))} if state.anchor else {}),
        **{f"{_HISTORY}{i}": to_record(dict(x)) for i, x in enumerate(state.histories)},
    }


def state_of(records: Mapping[str, Any]) -> BroadcastState:
    """Return what `records_of` was given; a record that is not there raises KeyError."""
    histories = takewhile(records.__contains__, (f"{_HISTORY}{i}" for i in count()))
    return BroadcastState(
        records["steps"],
        streams_of(records["streams"]),
        views_of(records["grids"])[_GRIDS],
        views_of(records["model"]),
        views_of(records["residual"]),
        [views_of(records[name]) for name in histories],
        views_of(records["anchor"]) if "anchor" in records else {},
    )


def by_node(**values: Mapping[int, Any]) -> ConfigRecord:
    """Return values by their nodes, as a record of two lists."""
    ((name, by_node),) = values.items()
    return ConfigRecord({"nodes": list(by_node), name: list(by_node.values())})


def values_by_node(record: ConfigRecord, name: str) -> dict[int, Any]:
    """Return what `by_node` was given."""
    nodes: Any = record["nodes"]
    values: Any = record[name]
    return dict(zip(nodes, values, strict=True))


def digests_in(records: Mapping[str, Any]) -> dict[int, Mapping[str, bytes]]:
    """Return digests by node, then key, from the records that `by_node` made of each key's."""
    found: dict[int, dict[str, bytes]] = {}
    for key, record in records.items():
        for node, digest in zip(record["nodes"], record["digests"], strict=True):
            found.setdefault(node, {})[key] = digest
    return dict(found)
