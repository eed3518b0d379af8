"""A task of one's own without PyTorch: scikit-learn's logistic regression. See README.md.

A dict of numpy arrays is the model. There is no accuracy here, so the loss says how good it is.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

TRAINING_EXAMPLES = 1500
pixels, labels = load_digits(return_X_y=True)
pixels = (pixels / 16).astype(np.float32)


class Digits:
    def build_model(self):
        return {"coef": np.zeros((10, 64), np.float32), "intercept": np.zeros(10, np.float32)}

    def load_share(self, index, count):
        return pixels[index:TRAINING_EXAMPLES:count], labels[index:TRAINING_EXAMPLES:count]

    def load_test(self):
        return pixels[TRAINING_EXAMPLES:], labels[TRAINING_EXAMPLES:]

    def train(self, model, share):
        classifier = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01)
        classifier.coef_, classifier.intercept_ = model["coef"], model["intercept"]
        classifier.partial_fit(*share, classes=np.arange(10))
        model.update(coef=classifier.coef_, intercept=classifier.intercept_)
        return {"examples": len(share[0])}

    def evaluate(self, model, test):
        inputs, targets = test
        logits = inputs @ model["coef"].T + model["intercept"]
        shares = np.exp(logits - logits.max(1, keepdims=True))
        return {"loss": log_loss(targets, shares / shares.sum(1, keepdims=True), labels=range(10))}
