"""Differential privacy of arrays: noise, clipping norms, and what rounds spend of a budget."""
