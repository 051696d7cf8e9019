"""Publishing the policy's weights to the engines."""
