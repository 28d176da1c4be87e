"""From a pile of raw images to a trained model. Nothing in here imports Airflow."""

__version__ = "0.2.0"
