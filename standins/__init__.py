"""Stand-ins for services and containers, for tests, benchmarks and demos. They use real protocols on loopback."""
