"""From a rollout to new weights."""
