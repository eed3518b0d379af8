"""Flower's messages over gRPC or within a process: a Grid on the server, a loop on the client."""

from fedsz import flower_environment  # noqa: F401 - before Flower is imported
