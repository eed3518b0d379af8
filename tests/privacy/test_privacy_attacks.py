"""What a server that lies gets of a client: one error in one line."""

from __future__ import annotations

import json
import math
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsz import compress, extras
from fedsz import flower_compat as compat
from fedsz.control.controller import Controller
from fedsz.control.record import ClientRecord, RoundRecord
from fedsz.core.protocol import Request
from fedsz.core.settings import DEFAULT
from fedsz.errors import ConfigError, FedszError
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, SecureMember, SecureSum
from fedsz.flower.records import KEY, SECURE, sealed, to_record
from fedsz.privacy.budget import concentrated, epsilon_of
from fedsz.privacy.client import Demands, SecureClient
from fedsz.privacy.flower_client import ANSWER, REQUEST, WEIGHTED_BY, LocalNoise
from fedsz.privacy.graph import MOST_DEGREE, Assumptions, plan
from fedsz.privacy.messages import (
    MOST_CLIENTS,
    Advert,
    Revealed,
    Roster,
    SealedShares,
    Survivors,
    Terms,
    decode,
    encode,
)
from fedsz.privacy.server import Stage
from fedsz.transport.node import Node, StateFolder
from tests.federation import Arrays, Visit, training
from tests.privacy.secure_rounds import Round

CELL = "SSN 078-05-1120"
MODEL = {"w": np.zeros((64, 64), np.float32)}
NODE = 77


# Both secrets of a client, by two lists of survivors.


@pytest.mark.parametrize("n", [2, 3, 5, 8, 10, 12, 27])
def test_no_split_of_the_survivors_gets_both_secrets_of_a_client(n: int) -> None:
    for split in range(n):
        round_ = Round(n).until(Stage.REVEALED)
        members = round_.server.members
        victim, *others = sorted(round_.clients)
        own = mask = 0
        for place, client in enumerate(others):
            alive = tuple(sorted(round_.clients)) if place < split else tuple(others)
            told = encode(Survivors(members.roster.round_id, alive))
            try:
                revealed = decode(round_.clients[client].answer(told), Revealed)
            except FedszError:
                continue
            own += victim in revealed.own
            mask += victim in revealed.mask

        assert min(own, mask) < members.plan.threshold


# A roster of made-up members.


@pytest.mark.parametrize(("corrupt", "dropout"), [(0.45, 0.45), (0.3, 0.3), (0.99, 0.99)])
@pytest.mark.parametrize("members", [4000, MOST_CLIENTS])
def test_a_roster_of_made_up_members_is_refused(
    members: int, corrupt: float, dropout: float
) -> None:
    client, round_id = SecureClient(5), secrets.token_bytes(32)
    terms = Terms(round_id, 16, 10, Assumptions(corrupt, dropout))
    mine = decode(client.answer(encode(terms)), Advert)
    keys = (secrets.token_bytes(32) for _ in iter(int, 1))
    others = (
        Advert(round_id, 100 + i, next(keys), next(keys), next(keys)) for i in range(members - 1)
    )
    roster = encode(Roster(round_id, (mine, *others)))

    with pytest.raises(FedszError, match=r"no secure sum of .*: lower corrupt or dropout"):
        client.answer(roster)


def test_a_roster_of_the_largest_size_has_a_plan_within_the_limit() -> None:
    assert plan(MOST_CLIENTS, Assumptions(signed=True)).degree <= MOST_DEGREE


# More rounds than a client agrees to, by any name.


def app_of(member: SecureMember | None = None) -> ClientApp:
    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        if CELL in at.context.node_config.values():
            float(CELL)
        return {name: x + np.float32(0.01) for name, x in model.items()}, {"num-examples": 7}

    return training(train, [FedSZMod(secure=member)])


def ask(app: ClientApp, context: Context, **content: Any) -> Message:
    message = Message(RecordDict(content), dst_node_id=NODE, message_type="train", ttl=100)
    message.metadata.__dict__["_message_id"] = secrets.token_hex(8)
    return app(message, context)


def arrays() -> ArrayRecord:
    return ArrayRecord({name: Array(x) for name, x in MODEL.items()})


def noise(number: int, norm: float = 1.0, multiplier: float = 1.0) -> ConfigRecord:
    config = ConfigRecord({"server-round": number})
    LocalNoise(norm, multiplier).write(config)
    return config


@pytest.fixture
def context() -> Context:
    return Context(1, NODE, {}, RecordDict(), {})


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(compat.TaskIdentity, name, 1)


def test_a_client_that_is_asked_on_and_on_stops_at_its_limit(context: Context) -> None:
    app = app_of(SecureMember(required=False, most_rounds=3))
    for number in range(3):
        ask(app, context, arrays=arrays(), config=noise(number))
    again = ask(app, context, arrays=arrays(), config=noise(2))  # the reply that was kept
    assert again.has_content()

    with pytest.raises(FedszError, match=r"has trained in 3 rounds, and its limit is 3"):
        ask(app, context, arrays=arrays(), config=noise(3))


def test_a_client_spends_no_more_than_its_own_epsilon(context: Context) -> None:
    """Whatever noise each round has; and it trains in none without."""
    app = app_of(SecureMember(required=False, most_epsilon=8.0))
    with pytest.raises(FedszError, match="would have spent epsilon inf, and its limit is 8"):
        ask(app, context, arrays=arrays())
    multipliers = [6.0, 3.0, 6.0, 3.0]
    for number, multiplier in enumerate(multipliers):
        ask(app, context, arrays=arrays(), config=noise(number, multiplier=multiplier))
    with pytest.raises(FedszError, match=r"would have spent epsilon 8\.\d+, and its limit is 8"):
        ask(app, context, arrays=arrays(), config=noise(5, multiplier=2.0))

    spent = concentrated(sum(2 / m**2 for m in multipliers))
    together = 1 / math.sqrt(sum((2 / m) ** 2 for m in multipliers))
    assert spent < 8
    if not extras.missing("dp_accounting"):  # the exact epsilon is less
        assert 0.7 * spent < epsilon_of(together, 1, 1e-5) < spent


@pytest.mark.parametrize("restarts", [False, True])
def test_a_limit_of_rounds_holds_for_runs_of_any_name(restarts: bool, tmp_path: Path) -> None:
    """A server may call each round another run's; and the client's process may have ended."""
    app = app_of(SecureMember(required=False, most_rounds=3))

    def answers(node: Node, run_id: int) -> bool:
        content = RecordDict({"arrays": arrays(), "config": noise(run_id)})
        message = Message(content, dst_node_id=NODE, message_type="train", ttl=100)
        message.metadata.__dict__.update(_message_id=secrets.token_hex(8), _run_id=run_id)
        return not node.answer(message, limit=1 << 30).error

    with StateFolder(tmp_path) as folder:
        found = []
        node = Node(app, {}, folder=folder)
        for run_id in range(1, 6):
            node = Node(app, {}, folder=folder) if restarts else node
            found.append(answers(node, run_id))

    assert found == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("norm", "multiplier"), [(1e300, 1.0), (5e-324, 1.0), (1e3, 1e308), (np.nan, 1.0), (1.0, 0.0)]
)
def test_odd_noise_is_refused(norm: float, multiplier: float, context: Context) -> None:
    with pytest.raises(ConfigError, match="asks for no noise that there is"):
        ask(app_of(), context, arrays=arrays(), config=noise(1, norm, multiplier))


def sum_of(app: ClientApp, context: Context, run: bytes, number: int, first: int = 100) -> Message:
    """Ask a client for its share of noise in a sum with seven made-up members."""
    round_id = secrets.token_bytes(32)
    terms = encode(Terms(round_id, 24, MODEL["w"].size, Assumptions()))

    def stage(request: bytes, **more: Any) -> Message:
        record = ConfigRecord({REQUEST: request, **more.pop("entries", {})})
        return ask(app, context, **{SECURE: record}, **more)

    reply: Any = stage(terms).content[SECURE]
    advert = decode(reply[ANSWER], Advert)
    others = {i: SecureClient(i) for i in range(first, first + 7)}
    made_up = [decode(other.answer(terms), Advert) for other in others.values()]
    roster = encode(Roster(round_id, (advert, *made_up)))
    assert stage(roster).has_content()
    shares = {i: decode(other.answer(roster), SealedShares).shares for i, other in others.items()}
    to_it = SealedShares(round_id, {i: s[NODE] for i, s in shares.items() if NODE in s})
    request = Request(run=run, round=number, trains=True, base={}, reference={}, settings=DEFAULT)
    return stage(
        encode(to_it),
        entries={WEIGHTED_BY: "num-examples"},
        arrays=sealed(compress(MODEL, error_bound=1e-3)),
        config=noise(1),
        **{KEY: ConfigRecord({"note": request.encode()})},
    )


def test_a_second_share_of_noise_counts_whatever_the_run_is_called(context: Context) -> None:
    app = app_of(SecureMember(Demands(clients=5), most_rounds=3))
    assert sum_of(app, context, b"r" * 16, 1).has_content()
    assert sum_of(app, context, b"q" * 16, 1).has_content()
    for run in (b"r" * 16, b"q" * 16):
        with pytest.raises(FedszError, match="its share of noise in this round before"):
            sum_of(app, context, run, 1, first=200)
    assert sum_of(app, context, b"r" * 16, 2).has_content()

    with pytest.raises(FedszError, match="its limit is 3"):
        sum_of(app, context, b"s" * 16, 3)


# Texts of exceptions.


@pytest.mark.parametrize("secure", [True, False])
def test_texts_of_exceptions_stay_at_the_client(secure: bool) -> None:
    nodes: list[dict[str, Any]] = [{"i": i} for i in range(8)]
    nodes[0]["cell"] = CELL
    member = SecureMember() if secure else None
    grid = FedSZGrid(
        LocalGrid(app_of(member), nodes),
        secure=SecureSum(bits=8, strategy_averages=True) if secure else None,
    )

    FedAvg(fraction_evaluate=0).start(grid=grid, initial_arrays=to_record(MODEL), num_rounds=1)

    (failure,) = grid.take_traffic().failures
    assert "ValueError" in failure.reason
    assert (CELL in failure.reason) is not secure


def test_texts_of_exceptions_stay_at_a_client_that_adds_noise(context: Context) -> None:
    context.node_config["cell"] = CELL
    with pytest.raises(FedszError) as failed:
        ask(app_of(), context, arrays=arrays(), config=noise(1))

    assert str(failed.value) == "ValueError"


# Whether one client took part.


def test_bounds_tell_nothing_of_who_took_part() -> None:
    def decided(extra: bool) -> str:
        controller = Controller("auto", DEFAULT, tolerance=0.5, rounds=None, private=True)
        controller.decide(RoundRecord(round=0))
        for number in range(1, 12):
            nodes = [1, 2, 3, 9] if extra and number == 2 else [1, 2, 3]
            clients = [
                ClientRecord(
                    node=str(i), client=f"c{i}", bandwidth=0.0, raw_bytes=1, sent_bytes=1,
                    encode_seconds=0.0, decode_seconds=0.0,
                )
                for i in nodes
            ]  # fmt: skip
            record = RoundRecord(
                round=number, clients=clients, replies=len(nodes), accuracy=0.3 + 0.1 * extra
            )
            controller.decide(record)
        return json.dumps(str(controller.decision))

    assert decided(False) == decided(True)
