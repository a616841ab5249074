"""Runs beside each SuperNode."""

from perfeds2.deployment.flower.apps import client_app

app = client_app()
