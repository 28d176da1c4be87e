"""The contenders of the benchmarks: this project, other packages, and the limits of the machine.

A module for each kind of work: `writers` (shards), `readers` (batches), `transfers` (objects), `loops` (training
steps), `tables` (all of these for tables) and `table_models` (how good the models of tables are).
`benchmarks.harness.worker` runs a contender in a process of its own.
"""

from typing import Any

Job = dict[str, Any]
"""The work of one contender, from the JSON file of its worker. Each module lists its keys."""
