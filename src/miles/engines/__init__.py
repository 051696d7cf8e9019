"""Inference servers that speak SGLang's HTTP API, and their client."""
