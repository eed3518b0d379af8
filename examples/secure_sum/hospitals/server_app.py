"""The server: gets the mean of what hospitals have learned, and no hospital's own."""

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedSZGrid, SecureSum
from hospitals import task

app = ServerApp()


@app.main()
def main(grid, context):
    """Run federated averaging and print what it came to."""
    _, held_out = task.load_data(0, 1)

    def evaluate(server_round, arrays):
        accuracy = task.test(arrays.to_numpy_ndarrays(), held_out)
        print(f"round {server_round}: accuracy {accuracy:.4f}", flush=True)
        return MetricRecord({"accuracy": accuracy})

    # fedsz, line 2 of 2. FedAvg averages; a strategy that looks at single updates would see none.
    bits = int(context.run_config["bits"])
    grid = FedSZGrid(grid, secure=SecureSum(bits=bits, strategy_averages=True))
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    traffic = grid.take_traffic()
    print(
        f"up {traffic.sent_up:,} of {traffic.raw_up:,} bytes, "
        f"down {traffic.sent_down:,} of {traffic.raw_down:,} bytes"
    )
