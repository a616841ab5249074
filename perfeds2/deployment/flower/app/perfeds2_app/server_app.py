"""Runs beside the SuperLink."""

from perfeds2.deployment.flower.apps import server_app

app = server_app()
