"""What runs beside user code: the shim, the fork server, log frames, cgroups. Standard library only.

Everything here is also loaded by the fork server, whose pages every shim shares: modules stay small,
and nothing imports ``dataclasses``, ``typing`` at run time, ``subprocess`` or ``pathlib``.
"""
