"""What docker-compose.yml runs beside Airflow's own commands: env.py on the host, the other modules in a container."""
