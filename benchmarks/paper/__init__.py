"""The FedSZ paper's tables and figures: its numbers, ours, the difference, and what is wrong."""
