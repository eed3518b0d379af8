"""What clients learn: image data sets split among them, models, and one round of local training.

Nothing here knows that its results will be compressed or sent.
"""

from fedsz import flower_environment  # noqa: F401 - before Flower is imported
