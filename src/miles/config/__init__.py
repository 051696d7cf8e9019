"""Options, layers and checks; pydantic and the standard library only."""
