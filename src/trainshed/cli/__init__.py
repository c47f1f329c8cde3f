"""The command line: ``trainshed`` and ``el``. See `trainshed.cli.program`."""
