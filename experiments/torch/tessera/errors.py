"""What a person did or asked for that cannot be: one line, without a traceback, exit status 2."""


class Refused(Exception):
    pass


class Unchecked(Refused):
    """A strategy that cannot be run here to be checked, with the reason."""


class TraceError(Refused):
    """A file that is no trace, or a damaged one."""
