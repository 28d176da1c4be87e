"""The data gate: facts about all examples together, and the decision whether the run continues."""
