"""Rounds over emulated links, with and without compression, beside what the link model says.

    python -m benchmarks.netem [--quick] [--json]
        [--bandwidths 1mbps,...] [--latencies 1ms,...] [--repeats 3] [--model NAME]
        [--codec uniform] [--error-bound rel:1e-2] [--line auto|netem|relay] [--congestion NAME]

A server and a client, each a process in a network namespace of its own, exchange a model over gRPC
through a link of the bandwidth (each way) and the latency (one way) asked for: the server runs a
round of federated averaging, the client's app sends back what it got. Down is from the server's
posting the packed model until the app has it, up from the app's returning the packed reply until
the server has it. The link's model (`fedsz.experiments.link_model`) is told the bytes of gRPC's
messages. Every link gets a connection of its own; as a measure of TCP without gRPC, so does one
upload of as many bytes through a plain socket.

Needs Linux and root; takes eight minutes, with --quick less than one. Without root only the model's
times are printed, after the reason, and the exit code is 2; --model-only asks for them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from benchmarks.netem_link import (
    SERVER_ADDRESS,
    Line,
    Refused,
    congestion_control,
    make_line,
    namespaces,
)
from benchmarks.netem_report import (
    Cell,
    Exchange,
    as_json,
    modelled_table,
    rounds_table,
    ways_table,
)
from fedsz import formatting, quantities
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError, FedszError
from fedsz.experiments.environment import environment
from fedsz.experiments.link_model import Link

PEER: Final = "benchmarks.netem_peer"
ROOT: Final = Path(__file__).parents[1]
PATIENCE: Final = 5.0  # seconds that processes get to end by themselves
BANDWIDTHS, LATENCIES = "1mbps,10mbps,100mbps,500mbps,1gbps", "1ms,10ms,50ms"
QUICK_BANDWIDTHS, QUICK_LATENCIES = "10mbps,1gbps", "1ms,50ms"
SMALL_BELOW: Final = 10e6  # bits a second: 9 MB would take a minute each way


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure.

    Attributes:
        links: one after the other.
        model: whose arrays; empty for one whose exchange takes seconds.
        small_below: bits a second below which that is the small one.
        repeats: rounds of each kind on each link.
        codec, error_bound: of the compressed rounds.
        line: how to emulate: auto, netem or relay.
        congestion: TCP's congestion control; empty for this machine's.

    Raises:
        ConfigError: one of these is out of range or does not exist.
    """

    links: Sequence[Link]
    model: str = ""
    small_below: float = SMALL_BELOW
    repeats: int = 3
    codec: str = "uniform"
    error_bound: str = "rel:1e-2"
    line: str = "auto"
    congestion: str = ""

    def __post_init__(self) -> None:
        from fedsz.training import models

        if self.repeats < 1:
            raise ConfigError(f"repeats must be at least 1, got {self.repeats}")
        if self.model and self.model not in models.MODELS:
            raise ConfigError(f"no model {self.model!r}; have {', '.join(models.MODELS)}")
        Settings(error_bound=self.error_bound, codec=self.codec)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Return what the command line asks for."""
        quick = options.quick
        bandwidths = options.bandwidths or (QUICK_BANDWIDTHS if quick else BANDWIDTHS)
        latencies = options.latencies or (QUICK_LATENCIES if quick else LATENCIES)
        return cls(
            links=[
                Link(quantities.bandwidth(bandwidth), quantities.latency(latency))
                for bandwidth in bandwidths.split(",")
                for latency in latencies.split(",")
            ],
            model=options.model,
            small_below=100e6 if quick else SMALL_BELOW,
            repeats=(1 if quick else 3) if options.repeats is None else options.repeats,
            codec=options.codec,
            error_bound=options.error_bound,
            line=options.line,
            congestion=options.congestion,
        )

    @property
    def raw(self) -> dict[str, str]:
        """Settings of the `FedSZGrid` without compression."""
        return {"codec": "raw", "lossless": "raw"}

    @property
    def compressed(self) -> dict[str, str]:
        """Settings of the `FedSZGrid` with compression."""
        return {"codec": self.codec, "error_bound": self.error_bound}

    def model_for(self, link: Link) -> str:
        """Return the name of the model that is exchanged on a link."""
        return self.model or ("cnn" if link.bandwidth < self.small_below else "mobilenetv2")


class Peer:
    """A process of `netem_peer.py` in a namespace."""

    def __init__(self, role: str, namespace: str, log: Path) -> None:
        self._log = log
        ip = shutil.which("ip") or "ip"
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [ip, "netns", "exec", namespace, sys.executable, "-m", PEER, role, SERVER_ADDRESS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                cwd=ROOT,
                # Ctrl-C comes to us alone, and we end them.
                start_new_session=True,
            )

    def ask(self, **what: Any) -> None:
        """Ask for something; `answer` returns it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` will say why
            print(json.dumps(what), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """Return the next answer.

        Raises:
            FedszError: the process has ended; with the last thing it said.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text("utf-8", "replace").strip().splitlines()
            raise FedszError(said[-1] if said else f"a process ended: {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """Make the process end."""
        for ask in (self._process.terminate, self._process.kill):
            ask()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
                break
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@dataclass(frozen=True)
class Lab:
    """Two processes with an emulated link between them.

    Attributes:
        line: the link.
        server, client: the processes.
        congestion: TCP's congestion control.
    """

    line: Line
    server: Peer
    client: Peer
    congestion: str

    def measure(self, link: Link, plan: Plan) -> Cell:
        """Return what the exchanges that are planned take on a link.

        Raises:
            FedszError: a process failed.
        """
        self.line.set(link)
        self.line.lateness()
        model = plan.model_for(link)
        raw = self._rounds(model, plan.raw, plan.repeats)
        compressed = self._rounds(model, plan.compressed, plan.repeats)
        seconds = self._socket(raw[0].up_bytes)
        return Cell(
            link.bandwidth, link.latency, model, raw, compressed, seconds, self.line.lateness()
        )

    def _rounds(self, model: str, settings: dict[str, str], rounds: int) -> list[Exchange]:
        self.server.ask(do="rounds", model=model, settings=settings, rounds=rounds)
        self.client.ask(do="rounds", port=self.server.answer())
        exchanges = msgspec.convert(self.server.answer(), list[Exchange])
        self.client.answer()
        return exchanges

    def _socket(self, nbytes: int) -> float:
        self.server.ask(do="socket", bytes=nbytes)
        self.client.ask(do="socket", port=self.server.answer(), bytes=nbytes)
        end, start = self.server.answer(), self.client.answer()
        return float(end - start)


@contextmanager
def lab(line: str, congestion: str = "") -> Iterator[Lab]:
    """Set everything up; nothing of it is left afterwards.

    Raises:
        Refused: this machine does not let us.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsz-netem-")))
        names = stack.enter_context(namespaces())
        have = congestion_control(names, congestion)
        emulated = make_line(names, line)
        stack.callback(emulated.close)
        server = Peer("server", names.server, folder / "server.log")
        stack.callback(server.end)
        client = Peer("client", names.client, folder / "client.log")
        stack.callback(client.end)
        yield Lab(emulated, server, client, have)


def modelled(plan: Plan) -> list[Cell]:
    """Return the plan's cells without any link: real streams, and what making them took."""
    exchanges = {
        name: (_alone(name, plan.raw), _alone(name, plan.compressed))
        for name in sorted({plan.model_for(link) for link in plan.links})
    }
    cells = []
    for link in plan.links:
        name = plan.model_for(link)
        raw, compressed = exchanges[name]
        cells.append(Cell(link.bandwidth, link.latency, name, [raw], [compressed], 0.0, 0.0))
    return cells


def _alone(model: str, settings: dict[str, str]) -> Exchange:
    """Pack, unpack, encode and decode as a round does, in this process."""
    from benchmarks.netem_peer import arrays_of
    from fedsz.core.decode import decompress
    from fedsz.core.encode import compress_measured

    state = arrays_of(model)
    up = Settings(**settings)  # type: ignore[arg-type]
    down = up.replace(codec=up.lossless)
    streams, taken = [], []
    for way in (down, up):
        start = time.perf_counter()
        streams.append(compress_measured(state, way)[0])
        middle = time.perf_counter()
        decompress(streams[-1], as_numpy=True)
        taken += [middle - start, time.perf_counter() - middle]
    return Exchange(
        seconds=sum(taken),
        down_seconds=0.0,
        up_seconds=0.0,
        encode_seconds=taken[2],
        decode_seconds=taken[3],
        down_bytes=len(streams[0]),
        up_bytes=len(streams[1]),
        raw_bytes=sum(x.nbytes for x in state.values()),
    )


def measured(plan: Plan, *, as_machine: bool) -> None:
    """Measure and print.

    Raises:
        FedszError: it cannot be measured here, or a process failed.
    """
    begun = time.monotonic()
    cells = []
    with lab(plan.line, plan.congestion) as here:
        for link in plan.links:
            cells.append(here.measure(link, plan))
            seconds = sum(e.seconds for e in cells[-1].raw + cells[-1].compressed)
            what = f"{formatting.bandwidth(link.bandwidth)}, {link.latency * 1e3:g} ms"
            print(f"{what}: {seconds:.1f} s", file=sys.stderr, flush=True)
    facts = {
        **environment(),
        "line": here.line.how,
        "congestion_control": here.congestion,
        "tcp_rmem": _sysctl("tcp_rmem"),
        "tcp_wmem": _sysctl("tcp_wmem"),
        "codec": plan.codec,
        "error_bound": plan.error_bound,
        "repeats": plan.repeats,
        "seconds": time.monotonic() - begun,
    }
    if as_machine:
        json.dump(facts | {"cells": [as_json(cell) for cell in cells]}, sys.stdout, indent=2)
        print()
        return
    late = max(cell.late_seconds for cell in cells)
    facts["line"] = f"{facts['line']}; latest packet {late * 1e3:.1f} ms late"
    for key, value in facts.items():
        print(f"- {key.replace('_', ' ')}: {f'{value:.0f}' if key == 'seconds' else value}")
    print(f"\nSeconds are medians of {plan.repeats} rounds (least–greatest).\n")
    print(ways_table(cells), rounds_table(cells), sep="\n\n")


def _sysctl(name: str) -> str:
    return " ".join(Path("/proc/sys/net/ipv4", name).read_text().split())


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bandwidths", default="", help=f"with commas between; {BANDWIDTHS}")
    parser.add_argument("--latencies", default="", help=f"one way; {LATENCIES}")
    parser.add_argument("--repeats", type=int, help="rounds of each kind on each link; 3")
    parser.add_argument("--model", default="", help="cnn below 10 Mbps, else mobilenetv2")
    parser.add_argument("--codec", default="uniform")
    parser.add_argument("--error-bound", default="rel:1e-2")
    parser.add_argument("--line", choices=("auto", "netem", "relay"), default="auto",
                        help="how to emulate the link")  # fmt: skip
    parser.add_argument("--congestion", default="", help="TCP's, such as cubic; this machine's own")
    parser.add_argument("--quick", action="store_true", help="four links, a round each")
    parser.add_argument("--model-only", action="store_true", help="measure nothing; needs no root")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    options = parsed(arguments)
    try:
        plan = Plan.of(options)
        if not options.model_only:
            try:
                measured(plan, as_machine=options.json)
                return 0
            except Refused as err:
                print(f"netem: cannot emulate links here: {err}; this is the model's word alone:",
                      file=sys.stderr)  # fmt: skip
        cells = modelled(plan)
        if options.json:
            json.dump({"cells": msgspec.to_builtins(cells)}, sys.stdout, indent=2)
            print()
        else:
            print(modelled_table(cells))
    except FedszError as err:
        print(f"netem: {err}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if options.model_only else 2


if __name__ == "__main__":
    # So that an end by `kill` takes the namespaces away as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
