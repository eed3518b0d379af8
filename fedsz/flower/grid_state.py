"""What a Grid remembers between rounds <-> Flower's records, which a file can hold."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedsz.errors import CorruptStream
from fedsz.flower.admission import Learned
from fedsz.flower.broadcast import BroadcastState, Step
from fedsz.flower.packing import PackerState
from fedsz.flower.records import sealed, streams_of, to_record, views_of
from fedsz.update.reference import Reference

_PACKER: Final = "packer"
_HELD: Final = "held."  # and the key of an ArrayRecord
_ASKED: Final = "asked"
_COUNTED: Final = "counted"
_STEPS: Final = "steps."
_MODEL: Final = "model."
_RESIDUAL: Final = "residual."
_SHIFT: Final = "shift."  # and a node, a point, and the key of an ArrayRecord
_STREAMS: Final = "streams."
_GRIDS: Final = "grids."
_LEARNED: Final = "learned"
_NO_STEP: Final = -1.0  # of a tensor that is on no lattice


def records_of(state: PackerState, learned: Learned) -> RecordDict:
    """Return what packing and admission remember, as records."""
    records: dict[str, Any] = {
        _PACKER: ConfigRecord({"run": state.run, "turn": state.turn}),
        _LEARNED: ConfigRecord({"json": msgspec.json.encode(learned).decode()}),
    }
    for name, turns in ((_ASKED, state.asked), (_COUNTED, state.counted)):
        of_nodes: dict[str, Any] = {"nodes": list(turns), "turns": list(turns.values())}
        records[name] = ConfigRecord(of_nodes)
    for key in sorted({key for held in state.held.values() for key in held}):
        held = {node: digests[key] for node, digests in state.held.items() if key in digests}
        told: dict[str, Any] = {"nodes": list(held), "digests": list(held.values())}
        records[_HELD + key] = ConfigRecord(told)
    for node, shifts in state.shifts.items():
        for key, shift in shifts.items():
            records[f"{_SHIFT}{node}.{key}"] = to_record(dict(shift))
    for key, known in state.broadcasts.items():
        steps: dict[str, Any] = {
            "given": known.given,
            "initial": known.initial,
            "digests": [step.digest for step in known.steps],
        }
        names = list(known.model.arrays)
        grids = [[step.grid.get(name, _NO_STEP) for name in names] for step in known.steps]
        records |= {
            _STEPS + key: ConfigRecord(steps),
            _STREAMS + key: sealed([bytes(step.stream[:]) for step in known.steps]),
            _GRIDS + key: to_record({"steps": np.array(grids, np.float64)}),
            _MODEL + key: to_record(dict(known.model.arrays)),
            _RESIDUAL + key: to_record(dict(known.residual)),
        }
    return RecordDict(records)


def state_of(records: RecordDict) -> tuple[PackerState, Learned]:
    """Return what packing and admission remember, out of records.

    Raises:
        FedszError: they hold none.
    """
    known: Any = records
    try:
        held: dict[int, dict[str, bytes]] = {}
        for name in (name for name in known if name.startswith(_HELD)):
            for node, digest in zip(known[name]["nodes"], known[name]["digests"], strict=True):
                held.setdefault(node, {})[name.removeprefix(_HELD)] = digest
        keys = [name.removeprefix(_STEPS) for name in known if name.startswith(_STEPS)]
        broadcasts = {key: _broadcast(known, key) for key in keys}
        asked, counted = (
            dict(zip(known[name]["nodes"], known[name]["turns"], strict=True))
            for name in (_ASKED, _COUNTED)
        )
        shifts: dict[int, dict[str, Any]] = {}
        for name in (name for name in known if name.startswith(_SHIFT)):
            node, _, key = name.removeprefix(_SHIFT).partition(".")
            shifts.setdefault(int(node), {})[key] = _arrays(known[name])
        about = known[_PACKER]
        learned = msgspec.json.decode(known[_LEARNED]["json"], type=Learned)
        about = about["run"], about["turn"]
        return PackerState(*about, held, asked, counted, broadcasts, shifts), learned
    except (KeyError, TypeError, ValueError) as err:
        raise CorruptStream(f"these records are no Grid's: {type(err).__name__} {err}") from err


def _broadcast(known: Any, key: str) -> BroadcastState:
    told, model = known[_STEPS + key], Reference(_arrays(known[_MODEL + key]))
    taken = _arrays(known[_GRIDS + key])["steps"].tolist()
    named = (zip(model.arrays, steps, strict=True) for steps in taken)
    grids = [{name: step for name, step in steps if step != _NO_STEP} for steps in named]
    steps = zip(streams_of(known[_STREAMS + key]), told["digests"], grids, strict=True)
    residual = _arrays(known[_RESIDUAL + key])
    given, initial = told["given"], told["initial"]
    return BroadcastState(model, residual, given, initial, tuple(Step(*step) for step in steps))


def _arrays(record: ArrayRecord) -> dict[str, Any]:
    return views_of(record)
