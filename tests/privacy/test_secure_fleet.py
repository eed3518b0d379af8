"""Secure sums of real servers and clients: `fedsz server --secure-sum`, and who refuses what."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedsz.errors import ConfigError
from fedsz.training.federation import prepare, strategy_of
from fedsz.training.options import RunConfig
from fedsz.transport.authority import Authority
from tests.fleets import HELD, LIMIT, TASK, Server, federated, rounds_in, shares

if TYPE_CHECKING:
    from tests.fleets import Fleet


@pytest.mark.slow
def test_a_fleet_with_certificates_signs_its_keys(fleet: Fleet, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "keys")
    pair = authority.certify_server(["127.0.0.1"], 1)
    tls = ("--tls-ca", authority.ca, "--tls-cert", pair, "--tls-key", pair.with_suffix(".key"))
    place = ("--port", 0, "--json", "--task", TASK, "--rounds", 2, "--min-clients", 3)
    server = Server(fleet.start("server", *place, *tls, "--secure-sum", 16))
    for i in range(3):
        file = authority.certify_client(f"client-{i}", 1)
        own = ("--tls-ca", authority.ca, "--tls-cert", file, "--tls-key", file.with_suffix(".key"))
        at = ("--server", f"127.0.0.1:{server.port}", "--partition", f"{i}/3", "--task", TASK)
        fleet.start("client", *at, *own, "--secure-only", 3)

    last = server.wait_for_round(2)

    assert last["replies"] == 3
    assert not last["failures"]
    assert last["sent_up"] < 0.6 * last["raw_up"] + 1000


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["SealedShares", "Survivors"])
def test_a_server_that_is_killed_between_stages_makes_another_round(
    fleet: Fleet, stage: str
) -> None:
    """Its round 2 does not count: nobody is asked for more of it, and all rounds are of all."""
    options = ("--secure-sum", 16, "--rounds", 4, "--min-clients", 3, "--run-dir", "run")
    server = fleet.server(*options)
    port, code = server.port, "from tests.privacy.secure_apps import be_held; be_held()"
    for i in range(3):
        fleet.run("-c", code, f"127.0.0.1:{port}", i, stage if i == 0 else "")
    end = time.monotonic() + LIMIT
    while not (fleet.folder / "reached").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    server.process.kill()
    server.process.wait()
    asked = (fleet.folder / "asked-0").read_text().split()
    (fleet.folder / "go").touch()

    resumed = fleet.server("--resume", "run", port=port)

    assert resumed.process.wait(LIMIT) == 0
    lines = rounds_in(fleet.folder / "run")
    assert [line["round"] for line in lines] == list(range(5))
    assert [(line["replies"], line["failures"]) for line in lines[1:]] == [(3, [])] * 4
    for i in range(3):
        notes = (fleet.folder / f"asked-{i}").read_text().splitlines()
        # The model may go again.
        once = [
            note for note in notes if not note.startswith("SealedShares")
        ]  # the model may go again
        assert len(once) == len(set(once))
        assert not [note for note in notes[len(asked) // 2 + 1 :] if note.endswith(asked[-1])]
        revealed = sum(note.startswith("Survivors") for note in notes)
        assert revealed in ({4, 5} if stage == "Survivors" else {4})


def test_a_run_ends_where_one_without_secure_sums_does() -> None:
    plain, secure = (
        federated(
            RunConfig(task=TASK, rounds=4, secure_sum=bits, update="delta"), shares(4, task=TASK)
        )
        for bits in (0, 16)
    )

    assert [record.replies for record in secure] == [record.replies for record in plain]
    assert secure[-1].loss == pytest.approx(plain[-1].loss, rel=0.05)


def test_secure_sums_cannot_be_used_with_a_buffer() -> None:
    with pytest.raises(ConfigError, match="--secure-sum cannot be used with --buffer"):
        strategy_of(RunConfig(secure_sum=16, buffer=2))


def test_an_authority_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigError):
        prepare(RunConfig(task=HELD, secure_sum=16, tls_ca=str(tmp_path / "ca.pem")))
