"""What a person sees of a training while it goes on: how far it is, whether the accelerator waits, and all curves.

Drawn from the files of the run alone, and from the overview of its record (pipeline/monitor/overview.py), so that a run
of any length is opened at once. Imports neither Airflow nor TensorFlow.
"""
