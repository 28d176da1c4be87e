"""Stand-ins for services, for tests, benchmarks and demos. They use real protocols on loopback."""
