"""A small convolutional network, trained by clients that keep their images."""
