"""A deterministic engine in memory, for tests of the controller and for simulations of schedulers."""

from trainshed.engines.fake.engine import FakeEngine
from trainshed.engines.fake.remote import FakeRemoteEngine
from trainshed.engines.fake.scripts import ImageScript, Script

__all__ = ["FakeEngine", "FakeRemoteEngine", "ImageScript", "Script"]
