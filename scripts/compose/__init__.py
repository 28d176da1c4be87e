"""What docker-compose.yml runs beside Airflow's own commands.

env.py         on the host: the generated .env with the log-in and the secrets, before the first start
api_server.py  in a container: the log-in where Airflow wants it, then the API server
health.py      in a container: whether one part of Airflow is well
"""
