"""A client: trains the model it receives on its own images."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.flower import FedSZMod
from vision import task
from vision.records import to_parameters, to_record

app = ClientApp(mods=[FedSZMod()])  # fedsz, line 1 of 2


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model and reply with its new parameters."""
    config = context.run_config
    data, _ = load(context)
    parameters = task.train(
        to_parameters(message.content["arrays"]),
        data,
        int(config["local-epochs"]),
        float(config["learning-rate"]),
        int(config["batch-size"]),
    )
    metrics = MetricRecord({"num-examples": len(data[1])})
    content = RecordDict({"arrays": to_record(parameters), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the model on this client's own images."""
    data, _ = load(context)
    loss, accuracy = task.test(to_parameters(message.content["arrays"]), data)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def load(context: Context) -> tuple[task.Share, task.Share]:
    """Return this client's images, and those that nobody trains on."""
    node = context.node_config
    return task.load_data(int(node["partition-id"]), int(node["num-partitions"]))
