"""Compute for one device, or for many in turn, in a thread of its own, so that devices stay connected meanwhile."""

import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from perfeds2.deployment.device import Memory, do_job, upload_s
from perfeds2.deployment.device_state import Inbox, WorkItem
from perfeds2.deployment.masking import Identity, KeyRefusedError, Keyring, MaskedUpdate
from perfeds2.deployment.merging import unpacked
from perfeds2.deployment.messages import Head, JobMessage, Run
from perfeds2.deployment.preparation import Owner, Ready, prepare
from perfeds2.deployment.transport import STEPS, Arrays, Request
from perfeds2.errors import InputError

Turn = Callable[[], AbstractContextManager[object]]  # makes the context in which a device prepares


@dataclass
class DeviceWorker:
    """Takes work from a queue, and puts what it finds into the inbox."""

    owner: Callable[[int], Owner]  # by device number
    turn: Turn = nullcontext
    inbox: Inbox = field(default_factory=Inbox)
    work: queue.SimpleQueue[WorkItem] = field(default_factory=queue.SimpleQueue)
    _prepared: dict[tuple[str, int | None], Ready] = field(default_factory=dict)  # built-in data are shared

    def run_for_ever(self) -> None:
        threading.Thread(target=self.inbox.run_for_ever, name="inbox", daemon=True).start()
        while True:
            self.step()

    def step(self) -> None:
        """Take the next item from the queue, and prepare for its run or execute its job."""
        work = self.work.get()
        if work.dropped.is_set():
            return
        if isinstance(work.what, JobMessage):
            answer = self._help if work.what.kind in STEPS else self._do
            answer(work, work.what)
        elif work.ready is None:
            self._get_ready(work, work.what)
        else:
            self._renew_trust(work, work.what)

    def _get_ready(self, work: WorkItem, run: Run) -> None:
        device, signed = work.state, None
        try:
            with self.turn():
                ready = self._prepare(device.number, run)
            if run.authority is not None and device.credentials is not None:
                keyring = Keyring(Identity(device.credentials, device.number, run.authority), run.run)
                device.secrets.keyring, signed = keyring, keyring.signed
            self.inbox.put(device.prepared, run, ready, signed)
        except InputError as error:
            self.inbox.put(device.refuse, run, str(error))
        except Exception as error:  # such as from the owner's module; the details stay on this device
            traceback.print_exc()
            self.inbox.put(device.refuse, run, f"{type(error).__name__} while getting ready; see this device's log")

    def _renew_trust(self, work: WorkItem, run: Run) -> None:
        """Use newer authorities and a newer revocation list of devices from now on."""
        keyring = work.state.secrets.keyring
        if keyring is not None and run.authority is not None:
            try:
                keyring.identity = keyring.identity.renewed(run.authority)
            except InputError as error:
                work.state.say(str(error))

    def _prepare(self, number: int, run: Run) -> Ready:
        owner = self.owner(number)
        shared = owner.data_folder is None and not run.own_model and not run.files
        key = (run.run, None if shared else number)
        if key not in self._prepared:
            if any(known != run.run for known, _ in self._prepared):
                self._prepared.clear()
            self._prepared[key] = prepare(run, owner, number)
        return self._prepared[key]

    def _do(self, work: WorkItem, job: JobMessage) -> None:
        device, ready = work.state, work.ready
        if ready is None or ready.task is None or work.model is None:
            return
        update, said, owner = None, job.head(), self.owner(device.number)
        late = job.head(f"took longer than {owner.job_s:g} s (--job-s of this device)")
        limit = threading.Timer(owner.job_s or threading.TIMEOUT_MAX, self.inbox.put, (device.send, job, late))
        limit.daemon = True
        limit.start()
        try:
            training = job.kind == "train"
            secure = ready.setup.spec.privacy.secure_aggregation and training
            request = Request(job.ticket, device.number, job.version, job.kind, job.merged)
            start = unpacked(work.model())
            memory = None if ready.first is None or owner.state is None else Memory(owner.state, ready.run, ready.first)
            before = None if memory is None else memory.after(job.merged)
            reply, left = do_job(ready.setup, ready.task, request, start, before, lambda s: pause(work, s))
            if memory is not None and training:
                memory.keep(job.merged, before, job.ticket, left)
            said = said.model_copy(update={"metrics": dict(reply.metrics), "compute_s": reply.compute_s})
            update = reply.update
            if secure and update is not None:
                device.secrets.masks, update = _new_masks(work, job, ready, update), None
            elif update is not None:
                pause(work, upload_s(ready.setup, device.number, update))
        except CancelledError:
            return
        except InputError as error:
            device.say(str(error))
            said = job.head("this device cannot do the job; its own log says why")
        except Exception as error:  # the server learns that it failed, but nothing about the data
            traceback.print_exc()
            said = job.head(f"the job raised {type(error).__name__}")
        finally:
            limit.cancel()
        if job.asked is not None and said.error is None:
            self._help(work, job, said)
        else:
            self.inbox.put(device.send, job, said, update)

    def _help(self, work: WorkItem, job: JobMessage, said: Head | None = None) -> None:
        """Answer what secure aggregation asks for."""
        device, said, answer = work.state, said or job.head(), None
        try:
            masks = device.secrets.masks
            if masks is None or masks.keyring.run != job.run:
                raise InputError("this device has no update to mask; it was started again")
            answer = masks.answer(Request(job.ticket, device.number, job.version, job.kind, asked=job.asked))
            if "words" in answer and work.ready is not None:
                pause(work, upload_s(work.ready.setup, device.number, answer))
        except CancelledError:
            return
        except InputError as error:
            device.say(str(error))
            about = error.ue if isinstance(error, KeyRefusedError) else None
            answer, said = None, job.head(str(error)[:500]).model_copy(update={"about": about})
        except Exception as error:
            traceback.print_exc()
            answer, said = None, job.head(f"a step raised {type(error).__name__}")
        self.inbox.put(device.send, job, said, answer)


def _new_masks(work: WorkItem, job: JobMessage, ready: Ready, update: Arrays) -> MaskedUpdate:
    algorithm, keyring = ready.setup.algorithm, work.state.secrets.keyring
    assert keyring is not None
    assert algorithm.learner.clip is not None
    return MaskedUpdate(keyring, job.ticket, update, algorithm.learner.clip, algorithm.protocol.quorum)


def pause(work: WorkItem, seconds: float) -> None:
    """Sleep, but raise CancelledError as soon as the job is not wanted any more."""
    if seconds > 0 and work.dropped.wait(seconds):
        raise CancelledError
