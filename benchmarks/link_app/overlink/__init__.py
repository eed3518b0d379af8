"""A client that replays the steps of a training, and a server that times its rounds.

The environment has two paths: LINK_STEPS, a folder with model.safetensors and the step of each
round as step-1.safetensors and so on; and LINK_RESULT, the file of JSON that the server writes.
"""
