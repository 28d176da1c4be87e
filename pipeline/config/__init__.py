"""What a run is asked to do: its settings, what the administrator allows, its folders, and the checks at its start."""
