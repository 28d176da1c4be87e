"""Processes, threads, cores, memory and progress. Nothing here knows about datasets or trainings."""
