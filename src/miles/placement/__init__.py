"""Who sits where: Ray resources for trainer ranks and engines."""
