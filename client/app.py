"""The Flower ClientApp entry point: ``clientapp = "client.app:app"``."""

from fedsz.flower import make_client_app

app = make_client_app()
