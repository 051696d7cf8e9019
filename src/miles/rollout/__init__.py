"""From prompts to scored groups."""
