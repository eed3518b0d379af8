"""Add up the updates of a run again, and compare the model with the one that the run has left.

    python -m benchmarks.replay RUN_DIR

The run was one of `fedsz server --keep-updates` that sends its model exactly and has no --buffer.
From its first model each round's updates are added up, in the order, by the weights and scales that
rounds.jsonl lists. Exits with 1 if an update is missing or
another one, or if the models differ in a bit.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path

from flwr.app import ArrayRecord
from safetensors.numpy import load_file

from fedsz.arrays import Layout, NDArray
from fedsz.control.record import ClientRecord, RoundRecord
from fedsz.core.reference import Reference
from fedsz.errors import FedszError
from fedsz.flower.mean import Mean
from fedsz.flower.records import views_of
from fedsz.flower.update import Update
from fedsz.training.federation import prepare
from fedsz.training.model_state import arrays_of
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CONFIG, MODEL, UPDATE, UPDATES, read_rounds
from fedsz.transport.records_file import read_records


class Difference(Exception):
    """What a run has left is not what its updates make."""


def rounds_of(run: Path) -> list[RoundRecord]:
    """Return a run's rounds."""
    return list(read_rounds(run))


def replay(run: Path) -> dict[str, NDArray]:
    """Return the model that the updates of a run make.

    Raises:
        Difference: an update is missing, damaged or of another model; or rounds have overlapped.
    """
    config = RunConfig.read(run / CONFIG)
    if config.buffer:
        raise Difference("a run with --buffer cannot be added up again")
    model = arrays_of(prepare(config).model)
    for row in rounds_of(run):
        if row.clients and not row.uncounted:
            model = views_of(_average(run, row, Reference(model)))
    return model


def compare(run: Path) -> int:
    """Return how many updates make a run's model.

    Raises:
        Difference: they make another one.
    """
    ours, theirs = replay(run), load_file(run / MODEL)
    if {k: x.tobytes() for k, x in ours.items()} != {k: x.tobytes() for k, x in theirs.items()}:
        raise Difference("the updates make another model")
    return sum(row.replies for row in rounds_of(run) if not row.uncounted)


def _average(run: Path, row: RoundRecord, before: Reference) -> ArrayRecord:
    mean = Mean()
    dtypes = Layout.of(before.arrays).dtypes
    for client, record in _updates(run, row):
        try:
            update = Update.open(record, model=before.arrays, reference=before, dtypes=dtypes)
            mean.add(update, update.terms(), client.weight, client.scale)
        except FedszError as err:
            raise Difference(f"round {row.round}: {err}") from err
    return mean.result()


def _updates(run: Path, row: RoundRecord) -> Iterator[tuple[ClientRecord, ArrayRecord]]:
    for client in row.clients:
        try:
            record = read_records(run / UPDATES / client.digest).array_records[UPDATE]
        except (OSError, FedszError) as err:
            raise Difference(f"round {row.round}, update {client.digest}: {err}") from err
        hashed = hashlib.sha256(b"".join(array.data for array in record.values()))
        if hashed.hexdigest() != client.digest:
            raise Difference(f"round {row.round}, update {client.digest} is another one")
        yield client, record


def main() -> None:
    """Compare, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    try:
        count = compare(parser.parse_args().run)
    except (Difference, FedszError) as err:
        raise SystemExit(f"replay: {err}") from err
    print(f"{count} updates make the model, to the bit")


if __name__ == "__main__":
    main()
