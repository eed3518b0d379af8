"""A run that is watched: the live page, metrics and experiment trackers."""
