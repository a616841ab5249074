"""The same federation, kept as one would first write it: it looks at every device in every step. The test is that they agree."""

import numpy as np

from perfeds2.deployment.federation import Federation
from perfeds2.deployment.record import Loss
from perfeds2.timeline.protocol import IDLE, Server, close_round, end_jobs


class SlowFederation(Federation):
    """Takes replies as the other does; who is here, what closes and who is handed a model it finds out by looking at all."""

    def _advance(self):
        self.look()
        self._give_up()
        while self.round < self.rounds and self._close():
            pass
        if self.round < self.rounds:
            self._readmit()
            self._send_to_idle()
            self._check_quorum()

    def look(self):
        went, came = self.transport.changes()
        for device in self.devices:
            if device.ue in went:
                self.dispatcher.drop(device)
            device.here = device.ue in came or (device.here and device.ue not in went)
        self.refile()

    def _give_up(self):
        for ue, device in sorted(enumerate(self.devices), key=lambda each: (each[1].sent_s, each[0])):
            if device.job is not None and self.time_s - device.sent_s > self.own.job_s:
                device.overdue = device.job.ticket
                self.dispatcher.fail(self.crew[ue], self.time_s)

    def refile(self):
        for device in self.devices:
            self.crew.file(device)

    def free(self, ue):
        device = self.crew[ue]
        return device.here and device.job is None and device.reply is None and not device.set_aside

    def _close(self):
        waits = self.protocol.waits
        here = [ue for ue in range(self.ues) if self.crew[ue].version != IDLE or (waits and self.free(ue))]
        if len(here) < self.protocol.quorum:
            return False
        devices = [self.crew[ue] for ue in here]
        versions, merged_in = np.array([(device.version, device.merged_in) for device in devices], np.int64).T
        ours = Server(self.round, versions, merged_in, self.opened_s)
        closing = close_round(ours, np.array([device.arrived_s for device in devices]), self.protocol)
        if not np.isfinite(closing.time_s):
            return False
        self._merge([devices[place] for place in closing.merged], closing.time_s)
        theirs, lost = end_jobs(ours, closing, self.protocol)
        for place, device in enumerate(devices):
            device.version, device.merged_in = int(theirs.versions[place]), int(theirs.merged_in[place])
        for place in np.union1d(closing.merged, lost):
            devices[place].reply = None
            devices[place].wanted = devices[place].job is None
        self.round, self.opened_s = theirs.round, theirs.opened_s
        self.refile()
        self.save(self)
        self.log(self.record.sentence(self.round - 1, self.protocol.quorum))
        return True

    def _readmit(self):
        for device in sorted(self.devices, key=lambda each: (each.set_aside_s or 0.0, each.ue)):
            if (
                self.own.readmit_s
                and device.set_aside
                and self.time_s - (device.set_aside_s or 0.0) >= self.own.readmit_s
            ):
                device.set_aside_s, device.failures = None, self.own.set_aside_after - 1
                self.crew.file(device)

    def _send_to_idle(self):
        idle = [ue for ue in range(self.ues) if self.free(ue) and self.crew[ue].version == IDLE]
        if self.protocol.waits:
            most = self.protocol.quorum * ((self.protocol.max_staleness or 0) + 1)
            free = most - sum(device.version != IDLE for device in self.devices)
            idle = sorted(sorted(idle, key=lambda ue: self.crew[ue].merged_in)[: max(free, 0)])
        for ue in idle:
            device = self.crew[ue]
            if device.held not in (IDLE, self.round):
                self.record.losses.append(Loss(ue, device.held, self.round - 1, device.held_arrived_s))
            device.version = device.held = self.round
            device.held_arrived_s, device.wanted = np.inf, True
            self.dispatch(device, "train")
        self.refile()
