"""A hospital: trains the model on its own records, and sends its update masked or not at all."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.flower import FedSZMod, SecureMember
from fedsz.privacy.client import Demands
from hospitals import task

# fedsz, line 1 of 2: for secure sums of three hospitals or more, and for no other round.
app = ClientApp(mods=[FedSZMod(secure=SecureMember(Demands(clients=3)))])


@app.train()
def train(message, context):
    """Train the model and reply with its new weights, as in any Flower app."""
    node = context.node_config
    data, _ = task.load_data(int(node["partition-id"]), int(node["num-partitions"]))
    weights = task.train(message.content["arrays"].to_numpy_ndarrays(), data)
    metrics = MetricRecord({"num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
    return Message(content, reply_to=message)
