"""Reinforcement-learning post-training for language models, from a laptop CPU to a Ray cluster of GPUs."""

__version__ = "0.1.0"
