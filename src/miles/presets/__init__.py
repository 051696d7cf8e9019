"""Recipes as TOML data, with the small models and prompts they need."""
