"""A client: trains the model it receives on its own images."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import task
from fedsz.flower import FedSZMod

app = ClientApp(mods=[FedSZMod()])  # fedsz, line 1 of 2


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model and reply with its new weights."""
    config = context.run_config
    data, _ = load(context)
    weights = task.train(
        message.content["arrays"].to_numpy_ndarrays(),
        data,
        int(config["local-epochs"]),
        float(config["learning-rate"]),
    )
    metrics = MetricRecord({"num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the model on this client's own images."""
    data, _ = load(context)
    accuracy = task.test(message.content["arrays"].to_numpy_ndarrays(), data)
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def load(context: Context) -> tuple[task.Share, task.Share]:
    """Return this client's images, and those that nobody trains on."""
    node = context.node_config
    return task.load_data(int(node["partition-id"]), int(node["num-partitions"]))
