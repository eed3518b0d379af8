"""Runs and what they leave behind: the library behind the CLI."""
