"""Cases of the matrix in Flower's simulation, whose clients are processes of their own."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedsz.flower import FedSZMod
from tests.flower.flower_cases import CASES
from tests.flower.flower_runs import ROUNDS, Case, Outcome, outcome

SIMULATED = [case for case in CASES if case.name in ("FedAvg", "NumPyClient, DefaultWorkflow")]

RESOURCES: dict[str, Any] = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0},
    "init_args": {"num_cpus": 2},
}


def simulated(case: Case, *, wrapped: bool, rounds: int = ROUNDS) -> Outcome:
    """Run a case in Flower's simulation, plain or with fedsz's two lines."""
    server, found = ServerApp(), []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        found.append(outcome(case.serve, grid, {} if wrapped else None, rounds=rounds))

    app = case.app([FedSZMod()] if wrapped else [])
    run_simulation(server, app, num_supernodes=case.clients, backend_config=RESOURCES)
    return found[0]
