"""What a person did or asked for that cannot be: one line, without a traceback, exit status 2."""


class Refused(Exception):
    pass


class TraceError(Refused):
    """A file that is no trace, or a damaged one."""
