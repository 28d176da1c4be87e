"""A Google Cloud Storage for tests, benchmarks and demos.

It has real HTTP on loopback, true preconditions and checksums, and faults on request. The real client
speaks to it when `STORAGE_EMULATOR_HOST` names its `url`.
"""

from standins.fake_gcs.faults import Fault
from standins.fake_gcs.server import FakeGcs

__all__ = ["FakeGcs", "Fault"]
