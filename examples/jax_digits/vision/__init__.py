"""A dense network in JAX, trained by clients that keep their images."""
