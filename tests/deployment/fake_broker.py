"""A broker in memory, which delivers when it is told to, and can lose what it has taken: as a broker that dies does."""

from collections import deque
from typing import Any

from perfeds2.deployment.device_state import Inbox
from perfeds2.deployment.mqtt.link import Link


class AtOnce(Inbox):
    """Handles every event where it comes from, for tests in one thread."""

    def put(self, handle, *given):
        handle(*given)


class FakeBroker:
    """Takes what is published; ``pump`` delivers it."""

    def __init__(self):
        self.links, self.retained, self.waiting = [], {}, deque()
        self.is_up = True
        self.delivered = 0

    def link(self):
        return FakeLink(self)

    def take(self, topic, data, retain):
        if retain:
            self.retained[topic] = data
            if not data:
                del self.retained[topic]
        for link in self.links:
            if link.hears(topic):
                self.waiting.append((link, link.connection, topic, data, False))

    def pump(self, most=10**9):
        """Deliver at most this many messages. Whether there were any."""
        had = bool(self.waiting)
        while self.waiting and most > 0:
            link, connection, topic, data, retained = self.waiting.popleft()
            most -= 1
            if link.is_up and link.connection == connection:
                self.delivered += 1
                link.listener.message(topic, data, retained)
        return had

    def die(self):
        """With everything it had taken and not delivered, and all it retained; no one's will is heard."""
        self.is_up = False
        self.waiting.clear()
        self.retained.clear()
        for link in self.links:
            link.is_up = False

    def live(self):
        self.is_up = True
        for link in list(self.links):
            link.connect()


class FakeLink(Link):
    """A connection in memory."""

    def __init__(self, broker):
        self.broker, self.is_up, self.topics, self.unsent = broker, False, set(), []
        self.listener: Any = None
        self.will, self.connection = None, 0

    def hears(self, topic):
        return any(_matches(pattern, topic) for pattern in self.topics)

    def start(self, listener):
        self.listener = listener
        self.broker.links.append(self)
        if self.broker.is_up:
            self.connect()

    def connect(self):
        if self.is_up:
            return
        self.will = self.listener.last_will()
        self.is_up, self.topics = True, set()
        self.connection += 1
        unsent, self.unsent = self.unsent, []
        for each in unsent:  # as paho does
            self.broker.take(*each)
        self.listener.up()

    def publish(self, topic, data, retain=False):
        if self.is_up:
            self.broker.take(topic, data, retain)
        else:
            self.unsent.append((topic, data, retain))

    def subscribe(self, topic):
        self.topics.add(topic)
        for each, data in list(self.broker.retained.items()):
            if _matches(topic, each):
                self.broker.waiting.append((self, self.connection, each, data, True))

    def unsubscribe(self, topic):
        self.topics.discard(topic)

    def close(self, last=None):
        if last is not None:
            self.publish(*last, retain=True)
        self.is_up = False
        self.broker.links.remove(self)

    def cut(self):
        """The connection breaks; the broker notices."""
        if self.is_up:
            self.is_up = False
            if self.will is not None:
                self.broker.take(*self.will, False)

    def kill(self):
        """The process dies: it never comes back."""
        self.broker.links.remove(self)
        self.cut()


def _matches(pattern, topic):
    wanted, parts = pattern.split("/"), topic.split("/")
    return len(wanted) == len(parts) and all(a in ("+", b) for a, b in zip(wanted, parts, strict=True))
