"""The option sets, one file per concern: the only place where an option exists."""
