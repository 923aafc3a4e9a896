"""A watch on the database's clock: if it is set back, earlier time stamps lie in the future."""

from __future__ import annotations

import logging
from datetime import datetime

from tenure.services.execution.service import EventService
from tenure.services.notifications.outbox import OutboxService

LOG = logging.getLogger(__name__)


class ClockWatch:
    """Detects that the clock was set back, and releases what would wait for it to catch up.

    A claim that lasts longer than claims can was made before the clock was set back, so it is expired. An attempt that
    is due later than any attempt can be is made now. What was released for a time that has not come yet is free.
    """

    def __init__(self, events: EventService, outbox: OutboxService) -> None:
        self._events = events
        self._outbox = outbox
        self._latest: datetime | None = None

    def run(self) -> int:
        """Check the clock; return how many events, messages and allocations were released.

        The first check assumes a set-back.
        """
        now = self._events.now()
        was_set_back = self._latest is None or now < self._latest
        self._latest = now
        if not was_set_back:
            return 0
        count = self._events.expire_late_claims() + self._outbox.expire_late_claims()
        if count:
            LOG.warning("the clock was set back; %d events and messages do not wait for it", count)
        freed = self._events.cut_released()
        if freed:
            LOG.warning("the clock was set back; what %d released allocations have of the future is free", freed)
        return count + freed
