"""A run that is watched: the live page, metrics and experiment trackers."""

from fedsz.monitoring.tracking import Tracking

__all__ = ["Tracking"]
