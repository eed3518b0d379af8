"""Logistic regression, trained by clients that keep their images."""
