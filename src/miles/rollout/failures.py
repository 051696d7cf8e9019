"""From what ended a group of tasks to the one failure that began it."""


def first_failure(error: BaseException) -> BaseException:
    """The first leaf of an exception group; the exception itself where it is none."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
