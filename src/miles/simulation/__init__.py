"""What a run would do: the real producer, buffer, pacing and loops on a virtual clock, with simulated engines and policy."""
