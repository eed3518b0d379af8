"""A federation on Flower's simulation engine: the apps unchanged, clients as jobs of Ray's actors.

The engine lives in a process of its own, ``python -m benchmarks.paper.simulation``, whose stdin is
a `Setting` and whose stdout has a `RoundRecord` a line: so its children end with it, whatever it or
they do, and what it sets in the process stays there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fedsz import extras, flower_environment
from fedsz.child_process import Child, private_stdout, write_line
from fedsz.control.record import RoundRecord
from fedsz.errors import FedszError
from fedsz.training.apps import make_client_app
from fedsz.training.federation import federate, prepare
from fedsz.training.model_state import arrays_of
from fedsz.training.options import RunConfig

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

# Before Flower and Ray are imported: they would report to their makers. And where this module is.
ENVIRONMENT: Final = {
    "PYTHONPATH": str(Path(__file__).parents[2]),
    **flower_environment.VARIABLES,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_MEMORY_MONITOR": "1",
}
STORE: Final = 256 << 20  # bytes of memory that Ray's objects may take, and four models a worker
TIMEOUT: Final = 600.0  # seconds


# What the process is told: options of `RunConfig`, how many processes clients run in, one client at
# a time each, and where Ray keeps its sockets and logs.
Setting = tuple[dict[str, Any], int, str]


def simulate(config: RunConfig, *, workers: int, timeout: float = TIMEOUT) -> list[RoundRecord]:
    """Run ``config.clients`` clients on the engine and return the rounds, from 0.

    Clients take turns in ``workers`` processes. Every process has one thread, and all have ended
    on return, which is after ``timeout`` seconds at most.

    Raises:
        MissingPackage: Ray is not installed here.
        FedszError: the run failed or took too long; the message has the process's last line.
    """
    extras.require("ray", what="the simulation")
    with (
        tempfile.TemporaryDirectory(prefix="fedsz-", ignore_cleanup_errors=True) as folder,
        Child(
            "benchmarks.paper.simulation",
            log=Path(folder) / "log",
            threads=1,
            environment=ENVIRONMENT,
            whole_session=True,  # Ray's processes stay in it
        ) as process,  # fmt: skip
    ):
        with process.limited(timeout):
            process.tell((config.as_dict(), workers, folder))
            rounds = [msgspec.json.decode(line, type=RoundRecord) for line in process.lines()]
            status = process.wait()
        if process.timed_out:
            clients = f"{config.clients} clients"
            raise FedszError(f"the simulation of {clients} took more than {timeout:g} s")
        if status or len(rounds) != config.rounds + 1:
            words = process.last_words() or f"it ended with {status}"
            raise FedszError(f"the simulation failed: {words}")
    return rounds


def _client_app(config: RunConfig) -> ClientApp:
    """Return the app of a run; the engine tells a node its share, but neither folder nor device."""
    from flwr.clientapp import ClientApp

    inner, outer = make_client_app(), ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        context.node_config.update(
            {
                "task": config.task,
                "data-dir": config.data_dir,
                "device": config.device,
                "initial": config.initial,
            }
        )
        return inner(message, context)

    return outer


def main() -> None:
    """Run the setting on stdin and tell of its rounds on stdout."""
    # What Ray and Flower print is not ours.
    out = private_stdout()
    options, workers, folder = msgspec.json.decode(sys.stdin.buffer.readline(), type=Setting)
    config = RunConfig.of(options)

    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    problem = prepare(config)
    failed: list[BaseException] = []
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:  # noqa: ARG001 - our config is not Flower's
        try:
            federate(grid, config, problem, lambda done: write_line(out, done))
        except BaseException as err:
            failed.append(err)
            raise

    nbytes = sum(x.nbytes for x in arrays_of(problem.model).values())
    ray = {
        "num_cpus": workers,
        "object_store_memory": STORE + 4 * nbytes * workers,
        "log_to_driver": False,
        "_temp_dir": folder,
    }
    resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0.0}
    try:
        run_simulation(
            server_app=server_app, client_app=_client_app(config), num_supernodes=config.clients,
            backend_config={"init_args": ray, "client_resources": resources},
        )  # fmt: skip
    except Exception as err:
        cause = failed[0] if failed else err
        print(" ".join(f"{type(cause).__name__}: {cause}".split()), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
