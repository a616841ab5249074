"""Nothing: the server runs ``perfeds2.deployment.flower.server_task``, which is installed there."""

from flwr.serverapp import ServerApp

app = ServerApp()
