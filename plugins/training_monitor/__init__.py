"""The pages of Tenfold in Airflow's own UI: a training while it goes on, all trainings, and two beside each other."""
