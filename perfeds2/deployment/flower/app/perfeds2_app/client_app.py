"""Nothing: a device runs ``perfeds2 federate device``, and never what it is sent."""

from flwr.clientapp import ClientApp

app = ClientApp()
