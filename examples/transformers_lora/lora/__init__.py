"""LoRA adapters of a transformer, tuned by clients that keep their text."""
