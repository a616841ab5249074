"""A network on a virtual clock that remembers every job, and in which a test can cause trouble."""

from collections.abc import Callable

from perfeds2.deployment.transport import Answer, Arrays, InProcess, Request, Troubles


class RecordedNet(InProcess):
    def __init__(self, answer: Answer, delay_s: Callable[[Request], float], ues: int) -> None:
        super().__init__(answer, delay_s, ues)
        self.sent: list[Request] = []
        self.trouble: Troubles = {}

    def dispatch(self, request: Request, params: Arrays) -> None:
        self.sent.append(request)
        super().dispatch(request, params)

    def troubles(self) -> Troubles:
        told, self.trouble = self.trouble, {}
        return told
