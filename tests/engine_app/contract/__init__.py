"""Softmax regression of digits, padded to any size: see `client_app` and `server_app`."""
