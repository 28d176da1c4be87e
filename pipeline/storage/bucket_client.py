"""The one place that loads the client of Google Cloud Storage, with the first request to a bucket.

For local paths, nothing of Google's is imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.storage.gcs import Gcs


def bucket_client() -> "Gcs":
    """Return the one client of this process. Any number of threads may use it."""
    # An import at the top would load Google's client for local paths, too.
    from pipeline.storage.gcs import client

    return client()
