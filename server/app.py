"""The Flower ServerApp entry point: ``serverapp = "server.app:app"``."""

from fedsz.flower import make_server_app

app = make_server_app()
