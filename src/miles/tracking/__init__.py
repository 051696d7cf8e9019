"""Metrics, run folder, and what the terminal is told."""
