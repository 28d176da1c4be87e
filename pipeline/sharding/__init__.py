"""Plan a version with the gate, write and publish its shards, commit it; windows of dates."""
