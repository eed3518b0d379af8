"""What a client keeps from round to round: used where it fits, and never missed for long."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsz.core.client import ClientSession
from fedsz.core.coders import alike
from fedsz.core.decode import decompress
from fedsz.core.encode import compress
from fedsz.core.feedback import RESIDUAL, by_tensor, flat
from fedsz.core.protocol import ReplyNote, Request
from fedsz.core.reference import Reference
from fedsz.core.settings import WITHOUT_FEEDBACK, Settings
from fedsz.errors import ConfigError, NeedsKeyFrame
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid
from fedsz.flower.mod import NEEDS_KEY_FRAME
from fedsz.flower.records import note_of, stream_of, to_array
from fedsz.flower.store import FolderStore, RecordStore
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.flower_compat import ErrorCode
from fedsz.methods import Shared, TensorSpec, parse
from fedsz.methods.base import dense
from fedsz.methods.symbols import write
from fedsz.stream import CHAINED, Reader
from tests.conftest import files_of_at_most
from tests.federation import app_of, around, record_of, to_arrays
from tests.small_model import model

KEY, RUN, SENDER = "arrays", b"\7" * 16, 2
SHAPES = {"fc.weight": (40, 50), "fc.bias": (1500,)}
Arrays = dict[str, np.ndarray]

AROUND = (
    "", "feedback", "feedback:decay=0.5", "ecx", "ecx:decay=0.5,smooth=0.4", "dgc",
    "dgc:decay=0.5,momentum=0.5,clip=20", "adaptive", "adaptive:by=variance", "adaptive>feedback",
    "adaptive:by=variance>feedback:decay=0.5", "adaptive>ecx", "adaptive:times=2>dgc",
)  # fmt: skip
CODED = (
    "topk:k=5%", "rtopk>qsgd:unbiased=0", "threshold:k=5%>centroids", "randk:k=20%,unbiased=0",
    "sbc", "ternary", "rotate>sign", "sketch:unbiased=0", "powersgd>uniform@std:1",
    "uniform@std:2", "qsgd", "drive", "accordion",
)  # fmt: skip
PAIRS = [
    *itertools.product(AROUND, ("topk:k=4%>ternary", "powersgd:rank=2")),
    *itertools.product(("feedback", ""), CODED),
]


def keeps(text: str) -> bool:
    """Say whether a client takes a pipeline, and keeps anything of it."""
    try:
        return Settings(update=text).keeps_state
    except ConfigError:
        return False


KEPT = [
    text
    for text in [
        *(">".join(filter(None, pair)) for pair in PAIRS),
    ]
    if keeps(text)
]


def steps(number: int) -> Arrays:
    """What training changes in a round: alike from round to round, and not the same."""
    rng, again = np.random.default_rng(number), np.random.default_rng(99)
    return {
        name: (1 + number / 10) * (again.laplace(size=shape) + 0.3 * rng.laplace(size=shape))
        for name, shape in SHAPES.items()
    }


class Client:
    """One client of a run, whose reference model is zeros, so that its step is exact."""

    def __init__(self, update: str, dtype: Any = np.float32) -> None:
        self.settings, self.dtype = Settings(update=update, threshold=0), np.dtype(dtype)
        self.records: dict[str, Any] = {}
        self.run, self.round = RUN, 0

    def train(self) -> tuple[bytes, Arrays, ReplyNote]:
        """Return the next round's stream, what its receiver decodes, and the note beside it."""
        self.round += 1
        start = Reference({name: np.zeros(shape, self.dtype) for name, shape in SHAPES.items()})
        request = Request(
            run=self.run, round=self.round, trains=True, base={},
            reference={KEY: start.digest}, settings=self.settings,
        )  # fmt: skip
        session = ClientSession(request, RecordStore(self.records), sender=SENDER)
        session.receive(KEY, compress(start.arrays, codec="raw"))
        trained = {name: x.astype(self.dtype) for name, x in steps(self.round).items()}
        stream = session.reply(KEY, trained)
        return stream, decompress(stream, reference=start, as_numpy=True), session.note()

    @property
    def kept(self) -> Any:
        """What it keeps of its pipeline, as a record."""
        return self.records[f"fedsz.memory.{KEY}"]


def payloads(stream: bytes) -> dict[str, bytes]:
    """Return what a pipeline has coded, by tensor."""
    reader = Reader(stream)
    return {
        reader.header.tensors[payload.members[0]].name: bytes(data)
        for payload, data, _ in reader.payloads()
        if payload.transform in CHAINED
    }


class Methods:
    """The same by the methods alone, whose state never leaves memory, and the formula of feedback.

    Attributes:
        residuals: by tensor, what feedback has left out.
    """

    def __init__(self, update: str) -> None:
        self.transform = parse(update)
        self.decay = Settings(update=update).feedback_decay
        self.states: dict[str, Any] = {}
        self.residuals: Arrays = {}

    def payload(self, name: str, x: np.ndarray, number: int) -> bytes:
        spec = TensorSpec(x.shape, x.dtype, name)
        shared = Shared(spec, int.from_bytes(RUN[:8], "little"), number, SENDER)
        if self.decay is not None and name in self.residuals:
            x = x + np.float32(self.decay) * self.residuals[name]
        before = self.states.get(name) or self.transform.init(spec)
        coded, self.states[name] = self.transform.encode(x, before, shared)
        self.residuals[name] = x - dense(self.transform.decode(coded, shared))
        return write(self.transform, coded)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("update", KEPT)
def test_a_pipeline_goes_on_from_what_it_kept(update: str) -> None:
    client, anew, methods = Client(update), Client(update), Methods(update)
    for number in (1, 2, 3):
        stream, _, _ = client.train()
        coded = payloads(stream)
        for name, payload in coded.items():
            step = steps(number)[name].astype(np.float32)
            assert payload == methods.payload(name, step, number), name
        assert "fc.weight" in coded
        if number == 3:
            anew.records.clear()
        without, _, _ = anew.train()

    assert without != stream


@pytest.mark.parametrize("decay", [1.0, 0.5])
@pytest.mark.parametrize("update", ["feedback:decay={}>topk:k=5%", "delta+ef"])
def test_energy_is_of_the_step_and_what_was_left_of_earlier_ones(update: str, decay: float) -> None:
    """By the definition of error feedback, and no state of ours."""
    client, left = Client(update.format(decay)), dict[str, Any]()
    client.settings = client.settings.replace(decay=decay, error_bound="std:2")
    for number in (1, 2, 3):
        _, arrived, note = client.train()
        target = {k: x + decay * left.get(k, 0) for k, x in steps(number).items()}
        left = {k: v - arrived[k] for k, v in target.items()}
        lost, sent, step = (
            sum(float(np.square(x).sum()) for x in of.values())
            for of in (left, target, steps(number))
        )
        assert note.energy_fraction == pytest.approx(1 - lost / sent, abs=1e-5)
        assert note.residual_ratio == pytest.approx(np.sqrt(lost / step), rel=1e-4)


def test_a_residual_waits_while_its_tensor_is_not_asked_for_with_loss() -> None:
    """A round of lossless replies, such as an evaluation, leaves it alone."""
    client = Client("feedback>topk:k=5%")
    client.train()
    before = client.kept[f"{RESIDUAL}/fc.weight"].numpy()

    request = Request(
        run=RUN, round=1, trains=False, base={}, reference={}, settings=client.settings
    )
    ClientSession(request, RecordStore(client.records)).reply(KEY, dict(steps(7)))

    assert np.array_equal(client.kept[f"{RESIDUAL}/fc.weight"].numpy(), before)


def test_a_state_comes_back_from_a_record_whatever_tensors_are_called() -> None:
    x = np.ones((2, 3), np.float32)
    states: dict[str, Any] = {
        name: {"residual": x, "powersgd.factor": 2 * x}
        for name in ("a", "a.b", "powersgd.factor/a", "/", "residual/residual")
    }
    store = RecordStore({})

    store.keep_memory(KEY, flat(states), RUN, 3)
    memory, run, of_round = store.memory(KEY)

    back = by_tensor(memory)
    assert (run, of_round) == (RUN, 3)
    assert back.keys() == states.keys()
    assert all(alike(back[name], states[name]) for name in states)


def asked(**changes: Any) -> Callable[[Client], None]:
    """The server asks for something else."""

    def change(client: Client) -> None:
        client.settings = client.settings.replace(**changes)

    return change


def holding(name: str, x: Any) -> Callable[[Client], None]:
    """The client finds something else in its state."""

    def change(client: Client) -> None:
        client.kept[name] = x if isinstance(x, Array) else to_array(x)

    return change


PIPELINE = "adaptive>feedback>topk:k=2%"
LEFT = f"{RESIDUAL}/fc.weight"
NO_ARRAY = Array("int64", (1,), "numpy.ndarray", b"x")
NOT_FINITE, SMALL = np.full((40, 50), np.nan, np.float32), np.ones((3, 2), np.float32)


@pytest.mark.parametrize(
    ("change", "unused"),
    [
        (asked(update="feedback>powersgd"), "adaptive."),
        (holding(LEFT, SMALL), LEFT),
        (holding(LEFT, NOT_FINITE), LEFT),
        (holding(LEFT, NO_ARRAY), ""),  # the record cannot be read
        (holding("adaptive.norm/fc.weight", np.ones(2)), "adaptive.norm/fc.weight"),
    ],
)
def test_what_was_kept_and_does_not_fit_is_not_used(
    change: Callable[[Client], None], unused: str
) -> None:
    client, other = Client(PIPELINE), Client(PIPELINE)
    for one in (client, other, client, other):
        one.train()
    for name in [name for name in other.kept if name.startswith(unused)]:
        del other.kept[name]

    change(client)
    other.settings = client.settings

    assert client.train()[0] == other.train()[0]


@pytest.mark.parametrize("change", ["array", "bytes", "dtype", "name"])
def test_a_kept_model_that_has_changed_is_not_taken_for_the_servers(change: str) -> None:
    x = np.ones(2000, np.float32)
    sent, store = Reference({"w": x}), RecordStore({})
    store.keep_reference(KEY, Reference({"w": x}))
    later = compress({"w": x + 1}, "abs:1", reference=sent, threshold=0)
    after = Reference(decompress(later, reference=sent, as_numpy=True))

    def session(base: Reference, reference: Reference) -> ClientSession:
        request = Request(
            run=RUN, round=1, trains=True, base={KEY: base.digest},
            reference={KEY: reference.digest}, settings=Settings(),
        )  # fmt: skip
        return ClientSession(request, store)

    assert session(sent, sent).receive(KEY, b"").digest == sent.digest
    kept: Any = store.records[f"fedsz.reference.{KEY}"]
    other = to_array(np.zeros(2000, np.float32))
    if change == "array":
        kept["w"] = other
    elif change == "bytes":
        kept["w"].data = other.data
    elif change == "dtype":
        wide = to_array(np.ones(2000, np.float64))
        kept["w"].data, kept["w"].dtype = wide.data, wide.dtype
    else:
        kept["v"] = kept.pop("w")
    for reference, stream in ((sent, b""), (after, later)):
        with pytest.raises(NeedsKeyFrame):
            session(sent, reference).receive(KEY, stream)


CLIENTS, ROUNDS = 4, 8
ALL = set(range(1, ROUNDS + 1))
NAMED: Any = {"update": "delta+ef", "error_bound": "step:2", "downlink": "step:0.5"}
Lose = Callable[[Context, Path], object]


class Fleet:
    """Clients that train for some rounds, of which client 1 may lose its state before some.

    Attributes:
        requests: by client, of each message to train.
        streams: by client, of each.
        notes: by client, beside each reply.
        models: by client, each model that the app has trained.
        lost: the rounds before which client 1 loses its state.
    """

    def __init__(
        self,
        folder: Path,
        *,
        lost: set[int],
        lose: Lose,
        in_folder: bool,
        has_initial: bool = False,
        **named: Any,
    ) -> None:
        self.requests: dict[int, list[Request]] = {i: [] for i in range(CLIENTS)}
        self.streams: dict[int, list[bytes]] = {i: [] for i in range(CLIENTS)}
        self.notes: dict[int, list[ReplyNote]] = {i: [] for i in range(CLIENTS)}
        self.models: dict[int, list[bytes]] = {i: [] for i in range(CLIENTS)}
        self.lost, self._lose, self.folder = lost, lose, folder
        self._rng, self._named = np.random.default_rng(3), {**NAMED, **named}
        initial = (lambda: model()) if has_initial else None

        def answer(message: Message, context: Context) -> Message:
            # A new mod for each message: what is kept in a folder outlives the process.
            mod = FedSZMod(initial, state_dir=folder if in_folder else None)
            app = app_of(self._edit, mods=[mod], examples=lambda _: 1)
            if in_folder:
                context.state = RecordDict()
            reply: Message = around(app, self._before, self._after)(message, context)
            return reply

        self.inner = LocalGrid(answer, [{"partition-id": i} for i in range(CLIENTS)])  # type: ignore[arg-type]
        self.grid = FedSZGrid(self.inner, **self._named)
        self.arrays = record_of(model())

    def _edit(self, client: int, x: Arrays) -> Arrays:
        self.models[client].append(Reference(x).digest)
        return {n: (a + self._rng.normal(0, 0.02, a.shape)).astype(a.dtype) for n, a in x.items()}

    def _before(self, client: int, message: Message, context: Context) -> None:
        config: Any = message.content["config"]
        if message.metadata.message_type != "train":
            return
        if client == 1 and config["server-round"] in self.lost:
            self._lose(context, self.folder / "1")
        self.requests[client].append(Request.decode(note_of(message.content)))
        self.streams[client].append(stream_of(message.content.array_records[KEY]))

    def _after(self, client: int, message: Message, reply: Message) -> None:
        if message.metadata.message_type == "train" and reply.has_content():
            self.notes[client].append(ReplyNote.decode(note_of(reply.content)))

    def resume(self) -> None:
        """Go on with another server, from what the last one has kept."""
        state = self.grid.state()
        self.grid = FedSZGrid(self.inner, **self._named)
        self.grid.restore(state)

    def train(self, rounds: range, *, tests: bool = False) -> int:
        """Train for rounds of these numbers, and return how many replies counted."""
        strategy, counted = FedAvg(), 0
        for number in rounds:
            messages = strategy.configure_train(number, self.arrays, ConfigRecord(), self.grid)
            replies = list(self.grid.send_and_receive(list(messages)))
            counted += sum(not reply.has_error() for reply in replies)
            averaged, _ = strategy.aggregate_train(number, replies)
            self.arrays = averaged or self.arrays
            if tests:
                asked = strategy.configure_evaluate(number, self.arrays, ConfigRecord(), self.grid)
                self.grid.send_and_receive(list(asked))
        # Whatever a client has lost, all train the same model.
        assert all(models == self.models[0] for models in self.models.values())
        return counted


def nothing_left(context: Context, folder: Path) -> None:
    context.state.clear()
    shutil.rmtree(folder, ignore_errors=True)


def cut(_: Context, folder: Path) -> None:
    for path in folder.glob("*.fsr"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def changed(_: Context, folder: Path) -> None:
    for path in folder.glob("*.fsr"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] + b"damaged" + data[len(data) // 2 + 7 :])


def of_another(_: Context, folder: Path) -> None:
    """What a client of another run, whose model is another, has kept."""
    other = FedSZMod(state_dir=folder.parent)
    inner = LocalGrid(app_of(mods=[other]), [{"partition-id": int(folder.name)}])
    start = record_of({name: x + 1 for name, x in model().items()})
    strategy = FedAvg(fraction_evaluate=0, min_train_nodes=1, min_available_nodes=1)
    strategy.start(FedSZGrid(inner, **NAMED), start, num_rounds=2)


def of_round_one(_: Context, folder: Path) -> None:
    """A copy of what was kept after the first round, such as an image of a disk has."""
    copy = folder.parent / "copy"
    if not copy.exists():
        if folder.exists():
            shutil.copytree(folder, copy)
        return
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


LOSSES = [
    (nothing_left, False),
    (nothing_left, True),
    (cut, True),
    (changed, True),
    (of_another, True),
    (of_round_one, True),
]


@pytest.mark.parametrize(("lose", "in_folder"), LOSSES)
def test_who_always_loses_its_state_takes_part_in_each_round(
    tmp_path: Path, lose: Lose, in_folder: bool
) -> None:
    """Two rounds find it out. Then it is asked once in each: key frames, and no feedback."""
    fleet = Fleet(tmp_path, lost=ALL, lose=lose, in_folder=in_folder)

    assert fleet.train(range(1, ROUNDS + 1)) == CLIENTS * ROUNDS

    asked = fleet.requests[1]
    assert [request.round for request in asked if not request.settings.keeps_state] == [*range(
        asked[-1].round - (ROUNDS - 3 - (lose is of_round_one)), ROUNDS + 1
    )]  # fmt: skip
    assert len(asked) == ROUNDS + 1
    later = [request for request in asked if not request.settings.keeps_state]
    assert all(request.base == {} for request in later)
    assert {request.settings.error_bound for request in later} == {f"step:{WITHOUT_FEEDBACK:g}"}
    for client in {0, 2, 3}:
        assert len(fleet.requests[client]) == ROUNDS
        assert all(request.base for request in fleet.requests[client][1:])
        assert all(request.settings.keeps_state for request in fleet.requests[client])


@pytest.mark.parametrize(("lose", "in_folder"), LOSSES[:-1])
def test_who_has_lost_it_now_and_then_goes_back_to_deltas(
    tmp_path: Path, lose: Lose, in_folder: bool
) -> None:
    fleet = Fleet(tmp_path, lost={3, 6}, lose=lose, in_folder=in_folder)

    assert fleet.train(range(1, ROUNDS + 1)) == CLIENTS * ROUNDS

    by_round: dict[int, list[bool]] = {}  # whether each message was a key frame
    for request in fleet.requests[1]:
        by_round.setdefault(request.round, []).append(not request.base)
    assert by_round == {
        1: [True], 2: [False], 3: [False, True], 4: [True], 5: [False],
        6: [False, True], 7: [True], 8: [False],
    }  # fmt: skip
    assert fleet.streams[1][-1] == fleet.streams[2][-1]
    assert fleet.requests[1][-1].settings.keeps_state


@pytest.mark.parametrize("tests", [False, True])
@pytest.mark.parametrize("has_initial", [False, True])
def test_no_round_asks_a_client_twice_more(
    tmp_path: Path, *, has_initial: bool, tests: bool
) -> None:
    """Also where it has the first model and no later one, or keeps a model for its test alone."""
    fleet = Fleet(
        tmp_path, lost=ALL, lose=nothing_left, in_folder=False,
        has_initial=has_initial, shared_initial=True,
    )  # fmt: skip

    assert fleet.train(range(1, ROUNDS + 1), tests=tests) == CLIENTS * ROUNDS

    rounds = [request.round for request in fleet.requests[1]]
    assert max(map(rounds.count, rounds)) <= 2
    if not tests:
        assert len(rounds) == ROUNDS + 1 + (not has_initial)


def test_a_resumed_server_knows_who_keeps_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, lost=ALL, lose=nothing_left, in_folder=False)
    fleet.train(range(1, 5))
    before = len(fleet.requests[1])

    fleet.resume()
    fleet.train(range(5, 9))

    assert len(fleet.requests[1]) == before + 4
    assert all(request.base for request in fleet.requests[0][4:])


def test_a_request_that_is_made_again_is_answered_as_before(tmp_path: Path) -> None:
    """A server that crashed before it could write the round down goes on from the one before."""
    fleet = Fleet(tmp_path, lost=set(), lose=nothing_left, in_folder=True)
    fleet.train(range(1, 4))
    state, was = fleet.grid.state(), fleet.arrays
    fleet.train(range(4, 5))
    trained, after = {i: len(models) for i, models in fleet.models.items()}, fleet.arrays

    fleet.grid = FedSZGrid(fleet.inner, **NAMED)
    fleet.grid.restore(state)
    fleet.arrays = was
    fleet.train(range(4, 6))

    assert trained[0] + 1 == len(fleet.models[0])
    assert fleet.requests[0][3] == fleet.requests[0][4]
    assert all(len(requests) == 6 for requests in fleet.requests.values())
    assert all(request.base and request.settings.keeps_state for request in fleet.requests[1][1:])
    assert to_arrays(after).keys() == to_arrays(was).keys()


def test_a_client_without_a_residual_is_none_that_has_lost_its_state(tmp_path: Path) -> None:
    """It trains again for a server that has crashed, and already has the model of the request."""
    fleet = Fleet(tmp_path, lost=set(), lose=nothing_left, in_folder=True, update="delta")
    fleet.train(range(1, 4))
    state, was = fleet.grid.state(), fleet.arrays
    fleet.train(range(4, 5))

    fleet.grid = FedSZGrid(fleet.inner, **{**NAMED, "update": "delta"})
    fleet.grid.restore(state)
    fleet.arrays = was
    fleet.train(range(4, 6))

    assert all(request.base for request in fleet.requests[1][1:])


def test_only_replies_that_may_be_asked_for_again_are_kept(tmp_path: Path) -> None:
    for update, is_kept in (("delta+ef", True), ("delta", False)):
        folder = tmp_path / update
        fleet = Fleet(folder, lost=set(), lose=nothing_left, in_folder=True, update=update)
        fleet.train(range(1, 3))

        size = (folder / "0" / "update.fsr").stat().st_size
        assert (size > len(fleet.streams[0][0]) / 2) == is_kept


def test_two_clients_share_a_folder_by_their_partition(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, lost=set(), lose=nothing_left, in_folder=True)
    fleet.train(range(1, 3))

    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]
    updates = {(path / "update.fsr").read_bytes() for path in tmp_path.iterdir()}
    assert len(updates) == CLIENTS
    modes = {file.stat().st_mode & 0o777 for file in tmp_path.rglob("*.fsr")}
    assert modes == {0o600}


def test_an_interrupted_client_keeps_its_old_state(tmp_path: Path) -> None:
    def model() -> Reference:
        return Reference({"w": np.ones(3, np.float32)})

    def train() -> None:
        with FolderStore(tmp_path) as store:
            store.keep_reference("arrays", model())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    with FolderStore(tmp_path) as store:
        assert store.reference("arrays") is None
        store.keep_reference("arrays", model())
    with FolderStore(tmp_path) as store:
        assert store.reference("arrays") is not None


def test_a_folder_that_another_process_works_in_is_refused(tmp_path: Path) -> None:
    taken = pytest.raises(ConfigError, match="another client works in")
    with FolderStore(tmp_path), taken, FolderStore(tmp_path):
        pass


def test_a_full_disk_leaves_the_old_files_and_one_line(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, lost=set(), lose=nothing_left, in_folder=True)
    fleet.train(range(1, 3))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.fsr")}

    with files_of_at_most(1000):
        messages = FedAvg().configure_train(3, fleet.arrays, ConfigRecord(), fleet.grid)
        replies = list(fleet.grid.send_and_receive(list(messages)))

    reasons = [str(reply.error.reason) for reply in replies if reply.has_error()]
    assert len(reasons) == CLIENTS
    assert all("cannot write" in line and "\n" not in line for line in reasons), reasons
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.fsr")} == before
    assert fleet.train(range(4, 6)) == 2 * CLIENTS
    assert all(request.base for request in fleet.requests[1][1:])


def test_a_client_that_always_asks_for_a_key_frame_costs_one_message_more_a_round() -> None:
    asked: list[int] = []

    def answer(message: Message, context: Context) -> Any:
        client = int(context.node_config["partition-id"])
        asked.append(client)
        if client == 1:
            code = ErrorCode.MOD_FAILED_PRECONDITION
            return Message(Error(code, f"{NEEDS_KEY_FRAME}: as ever"), reply_to=message)
        return app(message, context)

    app: ClientApp = app_of(examples=lambda _: 1)
    inner = LocalGrid(answer, [{"partition-id": i} for i in range(CLIENTS)])  # type: ignore[arg-type]
    grid = FedSZGrid(inner, **NAMED)
    FedAvg(fraction_evaluate=0).start(grid, record_of(model()), num_rounds=ROUNDS)

    assert grid.take_traffic().replies == (CLIENTS - 1) * ROUNDS
    assert asked.count(1) == 2 * ROUNDS
    assert all(asked.count(client) == ROUNDS for client in (0, 2, 3))


class Echo(WrappedGrid):
    """A Grid that gives each reply twice, and those of the call before once more."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._before: list[Message] = []

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        before, self._before = self._before, replies
        return [*before, *replies, *replies]

    def stream_replies(self, messages: Any, *, timeout: float | None = None) -> Any:
        return iter(self.send_and_receive(messages, timeout=timeout))


def test_a_reply_of_an_earlier_request_or_given_twice_counts_once() -> None:
    results = []
    for around_it in (lambda inner: inner, Echo):
        inner = LocalGrid(
            app_of(examples=lambda _: 1), [{"partition-id": i} for i in range(CLIENTS)]
        )
        grid = FedSZGrid(around_it(inner), **NAMED)
        result = FedAvg(fraction_evaluate=0).start(grid, record_of(model()), num_rounds=4)
        assert grid.take_traffic().replies == 4 * CLIENTS
        results.append(to_arrays(result.arrays))

    for name, x in results[0].items():
        np.testing.assert_allclose(x, results[1][name], atol=1e-5)
