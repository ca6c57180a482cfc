"""The one exception that is meant for users."""


class InputError(ValueError):
    """What a user can mend: one sentence with the values and the next step.

    The command line prints it without a traceback and exits with 2.
    """
