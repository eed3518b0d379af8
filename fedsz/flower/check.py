"""A dry round of a ClientApp, with and without the two lines: what it will meet with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedsz import flower_compat as compat
from fedsz.arrays import LOSSY_DTYPES, Layout, NDArray
from fedsz.core.partition import is_lossy
from fedsz.core.protocol import Request
from fedsz.core.settings import LEAST_BYTES, Settings
from fedsz.errors import ConfigError, ModelMismatch
from fedsz.flower.grid import FedSZGrid
from fedsz.flower.mod import FedSZMod
from fedsz.flower.records import (
    TRAIN,
    bytes_of_arrays,
    is_sealed,
    layout_of,
    note_of,
    passthrough_of,
    stream_of,
    to_record,
    views_of,
)
from fedsz.formatting import one_line, size
from fedsz.stream.inspection import inspect
from fedsz.transport.local_grid import LocalGrid

FINE, NOTE, FAILS = "fine", "note", "fails"
ROUND: Final = "server-round"  # as Flower's strategies name it in a ConfigRecord
NORM: Final = 1e6  # that clips nothing, for mods that ask for one; a run config may name another
SHOWN: Final = 3  # names in a line
# Flower's mods that change the arrays of a reply: they cannot work on a stream.
PRIVACY_MODS: Final = ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod", "secaggplus_mod")
NODE: Final[UserConfig] = {"partition-id": 0, "num-partitions": 2}  # as Flower's simulation says


class Finding(NamedTuple):
    """What an app meets: ``kind`` is `FINE`, `NOTE` or `FAILS`, ``text`` one line."""

    kind: str
    text: str


class WatchedState(RecordDict):
    """The state of a Context that notes what an app does with it; fedsz's own way is not noted."""

    def __init__(self, state: RecordDict) -> None:
        super().__init__()
        self.__dict__["_data"] = compat.data_of(state)
        self.__dict__["uses"] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in ("keys", "values", "items") or name.endswith("_records"):
            self.__dict__["uses"].add("reads")
        return super().__getattribute__(name)

    def __getitem__(self, key: str) -> Any:
        self.__dict__["uses"].add("reads")
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        self.__dict__["uses"].add("reads")
        return super().__iter__()

    def __contains__(self, key: object) -> bool:
        self.__dict__["uses"].add("reads")
        return super().__contains__(key)

    def clear(self) -> None:
        """Remove all records."""
        self.__dict__["uses"].add("empties")
        super().clear()


class WatchedApp(ClientApp):
    """An app, perhaps behind a mod, whose last exchange is kept.

    Attributes:
        request: the content of the message, as the server sent it.
        reply: the content of the reply, as the server receives it.
        uses: what the app did with its Context's state: reads, empties.
        names: of the records in that state, after the reply.
    """

    def __init__(self, app: ClientApp, mod: FedSZMod | None = None) -> None:
        super().__init__()
        self._app, self._mod = app, mod
        self.request, self.reply = RecordDict(), RecordDict()
        self.uses: set[str] = set()
        self.names: list[str] = []

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer as the app does."""
        self.request = message.content
        state = context.state = WatchedState(context.state)
        if self._mod is None:
            reply = self._app(message, context)
        else:
            reply = self._mod(message, context, self._app)
        self.uses |= state.__dict__["uses"] | ({"empties"} if context.state is not state else set())
        self.names = list(compat.data_of(context.state))
        if isinstance(reply, Message) and reply.has_content():
            self.reply = reply.content
        return reply


def check_app(
    app: ClientApp,
    initial: Mapping[str, NDArray],
    node_config: UserConfig | None = None,
    run_config: UserConfig | None = None,
) -> list[Finding]:
    """Return what a ClientApp meets with the two lines, by a round of training with and without.

    The app trains twice in this process. Folders of its own `FedSZMod` are not used.

    Args:
        app: with or without a `FedSZMod`.
        initial: the model that both rounds start from: arrays of any shape, by name.
        node_config: of the Context; a partition of two by default.
        run_config: likewise, and of the message's ConfigRecord.

    Raises:
        ConfigError: ``app`` is no ClientApp.
    """
    if not isinstance(app, ClientApp):
        raise ConfigError(f"the app is a {type(app).__name__}, not a ClientApp")
    mods = compat.mods_of(app, TRAIN)
    with _without_folders(mods):
        return _findings(app, mods, initial, node_config, run_config)


@contextmanager
def _without_folders(mods: list[Any]) -> Iterator[None]:
    """Have the mods keep their state in the Context: that in their folder is of a real run."""
    folders = {mod: mod._state_dir for mod in mods if isinstance(mod, FedSZMod)}
    try:
        for mod in folders:
            mod._state_dir = None
        yield
    finally:
        for mod, folder in folders.items():
            mod._state_dir = folder


def _findings(
    app: ClientApp,
    mods: list[Any],
    initial: Mapping[str, NDArray],
    node_config: UserConfig | None,
    run_config: UserConfig | None,
) -> list[Finding]:
    has_ours = any(isinstance(mod, FedSZMod) or mod is FedSZMod for mod in mods)
    config: dict[str, Any] = {**(run_config or {}), ROUND: 1}
    if any(_name(mod) in PRIVACY_MODS for mod in mods):
        config.setdefault(compat.KEY_CLIPPING_NORM, NORM)
    record = to_record(dict(initial))
    keys = ("fitins.parameters", "fitins.config") if compat.is_legacy(app) else ("arrays", "config")
    if keys[0] != "arrays":
        record = ArrayRecord([x.numpy() for x in record.values()])
    content = RecordDict({keys[0]: record, keys[1]: ConfigRecord(config)})

    findings = list(_order(mods))
    plain, watched = WatchedApp(app), WatchedApp(app, None if has_ours else FedSZMod())
    nodes = [node_config or NODE]
    if failure := _train(LocalGrid(plain, nodes, run_config), content):
        return [*findings, Finding(FAILS, f"the app fails without FedSZGrid: {failure}")]
    failure = _train(FedSZGrid(LocalGrid(watched, nodes, run_config)), content)
    findings += _state(plain, watched)
    replied = compat.records_in(plain.reply, ArrayRecord)
    if not replied:
        return [*findings, Finding(NOTE, "the reply has no arrays: there is nothing to compress")]
    if len(replied) > 1:
        text = f"the reply has {len(replied)} ArrayRecords, {_some(replied)}: the first is checked"
        findings.append(Finding(NOTE, text))
    key, trained = next(iter(replied.items()))
    findings += _model(record, trained)
    if failure:
        return [*findings, Finding(FAILS, f"with the two lines: {failure}")]
    sent = watched.reply.get(key)
    if isinstance(sent, ArrayRecord) and is_sealed(sent):
        findings += _exact(record, trained, sent, watched.request)
    else:
        text = f"the reply has fewer than {LEAST_BYTES} bytes of arrays: it passes as it is"
        findings.append(Finding(NOTE, text))
    return [*findings, _bytes(plain, watched)]


def _train(grid: Grid, content: RecordDict) -> str:
    """Have the one node of a Grid train; return why there is no usable reply, or ""."""
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(content, node, TRAIN, group_id="1")])
    why = reply.error.reason if reply.has_error() else ""
    return one_line(str(why))


def _order(mods: list[Any]) -> Iterator[Finding]:
    names = [_name(mod) for mod in mods]
    if FedSZMod.__name__ not in names:
        yield Finding(NOTE, "mods: no FedSZMod; checked with it as the first one")
    elif before := names[: names.index(FedSZMod.__name__)]:
        kind = FAILS if any(name in PRIVACY_MODS for name in before) else NOTE
        what = "a stream in place of arrays: put FedSZMod() first"
        yield Finding(kind, f"mods: {', '.join(before)} before FedSZMod gets {what}")
    else:
        yield Finding(FINE, "mods: FedSZMod is the first")


def _state(plain: WatchedApp, watched: WatchedApp) -> Iterator[Finding]:
    if uses := sorted(plain.uses):
        text = f"the app {' and '.join(uses)} context.state: it has the app's own records only"
        yield Finding(NOTE, f"{text}, those of fedsz are out of its sight")
    sealed = any(map(is_sealed, compat.records_in(watched.reply, ArrayRecord).values()))
    if sealed and not any(name.startswith("fedsz.") for name in watched.names):
        yield Finding(NOTE, "context.state loses the records of fedsz: no error feedback")


def _model(model: ArrayRecord, trained: ArrayRecord) -> Iterator[Finding]:
    """Compare the names, shapes and dtypes of a reply with those of the model."""
    ours, theirs = layout_of(model), layout_of(trained)
    lacks = [name for name in ours.shapes if name not in theirs.shapes]
    new = [name for name in theirs.shapes if name not in ours.shapes]
    if lacks and new:
        text = f"the reply renames tensors: it lacks {_some(lacks)} and has {_some(new)}"
        yield Finding(NOTE, f"{text}; other names are sent without loss")
    elif lacks:
        text = (
            f"the reply has {len(model) - len(lacks)} of {len(model)} tensors, not {_some(lacks)}"
        )
        yield Finding(NOTE, f"{text}; if clients differ in that, FedSZGrid(same_model=False)")
    elif new:
        yield Finding(NOTE, f"the reply has more than the model: {_some(new)}, sent without loss")
    else:
        yield Finding(FINE, f"the reply has all {len(model)} tensors of the model")
    shared = {name: shape for name, shape in theirs.shapes.items() if name in ours.shapes}
    try:
        Layout({name: ours.shapes[name] for name in shared}, ours.dtypes).check(shared)
    except ModelMismatch as err:
        yield Finding(NOTE, f"the reply has other shapes: {err}")
    for name in shared:
        before, after = ours.dtypes[name], theirs.dtypes[name]
        if before != after and {before, after} <= LOSSY_DTYPES:
            text = f"{name!r} is {after} in the reply and {before} in the model"
            yield Finding(NOTE, f"{text}: such tensors are sent in the model's dtype")
            break
    if beside := [f"{name} ({array.dtype})" for name, array in passthrough_of(trained).values()]:
        yield Finding(NOTE, f"arrays that pass unchanged, by their dtype: {_some(beside)}")


def _exact(
    model: ArrayRecord, trained: ArrayRecord, sent: ArrayRecord, request: RecordDict
) -> Iterator[Finding]:
    """Say which tensors of a stream are exact, with a line for each reason."""
    note = note_of(request)
    assert note is not None  # or the reply would not be a stream
    settings, arrays = Request.decode(note).settings, views_of(trained)
    tensors = inspect(stream_of(sent)).tensors
    exact = [t.name for t in tensors if t.bound is None and "chain" not in t.transform]
    yield Finding(
        FINE, f"{len(tensors) - len(exact)} of {len(tensors)} tensors have an error bound"
    )
    reasons: dict[str, list[str]] = {}
    for name in exact:
        reasons.setdefault(_why_exact(name, arrays[name], model, settings), []).append(name)
    for why, names in reasons.items():
        yield Finding(NOTE, f"{len(names)} exact, {why}: {_some(names)}")


def _why_exact(name: str, x: NDArray, model: ArrayRecord, settings: Settings) -> str:
    if x.dtype not in LOSSY_DTYPES:
        return f"{x.dtype} is no dtype for an error bound"
    if x.size <= settings.threshold:
        return f"up to {settings.threshold} elements"
    if not is_lossy(name, x, rule=settings.rule, threshold=settings.threshold):
        is_listed = name.isdecimal() and x.ndim < 2
        reason = "a vector without a name" if is_listed else "statistics of BatchNorm"
        return f"{reason} by rule {settings.rule!r}"
    if name not in model:
        return "the model has no such tensor"
    if (x == views_of(model)[name]).all():
        return "training did not change it"
    return (
        "too small to be worth an error" if x.nbytes < LEAST_BYTES else "coding would save nothing"
    )


def _bytes(plain: WatchedApp, watched: WatchedApp) -> Finding:
    up, down = (
        f"{size(bytes_of_arrays(after))} of {size(bytes_of_arrays(before))}"
        for before, after in ((plain.reply, watched.reply), (plain.request, watched.request))
    )
    smaller = bytes_of_arrays(plain.reply) / max(1, bytes_of_arrays(watched.reply))
    return Finding(FINE, f"first reply {up}, {smaller:.1f}x smaller; first model {down}")


def _name(mod: Any) -> str:
    name: str = getattr(mod, "__name__", type(mod).__name__)
    return FedSZMod.__name__ if isinstance(mod, FedSZMod) else name


def _some(names: Any) -> str:
    """Return the first of some names, and how many more there are."""
    shown = list(names)
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return one_line(", ".join(shown[:SHOWN])) + more
