"""What docker-compose.yml runs beside Airflow's own commands."""
