"""Softmax regression, padded to any size: see `client_app` and `server_app`."""
