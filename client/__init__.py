"""Part of the Flower bundle; not installed."""
