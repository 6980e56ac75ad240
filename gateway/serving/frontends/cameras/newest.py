"""Slot of one item between the thread that reads frames and the thread that uses them."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

Item = TypeVar("Item")


class NewestSlot(Generic[Item]):
    """Slot of one item. A new item replaces one that was not taken: the newest wins."""

    def __init__(self) -> None:
        self._item: Item | None = None
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, item: Item) -> bool:
        """Put an item, unless the slot is closed. Return True if it replaced one that was not taken."""
        with self._changed:
            if self._closed:
                return False
            replaced = self._item is not None
            self._item = item
            self._changed.notify_all()
            return replaced

    def wait_empty(self) -> None:
        """Wait until the item was taken, or the slot is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._item is None or self._closed)

    def take(self, timeout_s: float | None = None) -> Item | None:
        """Wait for an item and take it. Return None if there is none: the slot is closed, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._item is not None or self._closed, timeout_s)
            item, self._item = self._item, None
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Put no further item; one that is there can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
