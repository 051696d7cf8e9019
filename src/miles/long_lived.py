"""What a process loads before its work begins: kept for good, and no longer looked through for garbage."""

import gc


def keep_what_is_loaded() -> None:
    """Garbage collections look at objects made from now on alone.

    A process with torch, transformers and Ray holds some hundred thousand objects that live as long as it does, through which a
    full collection takes as long as several steps of a small run.
    """
    gc.collect()
    gc.freeze()
