"""Tests of the rollout part."""
