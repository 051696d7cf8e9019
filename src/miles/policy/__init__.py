"""From a rollout to new weights.

    Rollout ─batch─► columns ─advantages─► ─step_plan─► rows in micro-batches ─collate─► tensors
            ─model─► log-probs ─losses─► one number ─► gradient ─optimizer─► weights ─export─► engines

``trainer`` holds the path together, ``actor`` puts it into a process of its own, ``checkpoint`` writes it down.
"""
