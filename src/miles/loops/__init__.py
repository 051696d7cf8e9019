"""The schedules: who waits for whom."""
