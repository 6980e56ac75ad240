"""Last value of each channel of each sensor, for channels with `missing = "last"`. Pure: the clock is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from gateway.frontends.mqtt.inbound.payloads.channels import Values
from gateway.frontends.mqtt.settings.route import MqttChannel


class LastValues:
    """Last values of the sensors of one route; beyond `max_sensors` the least recently seen one is forgotten."""

    def __init__(self, channels: Sequence[MqttChannel], max_sensors: int) -> None:
        self._max_age_ns = np.array([channel.max_age_s * 1e9 for channel in channels])
        self._max_sensors = max_sensors
        self._sensors: OrderedDict[str, tuple[Values, Values]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sensors)

    def complete(self, sensor: str, rows: Values, now_ns: int) -> Values:
        """Replace NaN by the sensor's last values. Rows whose last value is unknown or too old are left out."""
        if not len(rows):
            return rows
        last, seen_ns = self._of(sensor)
        usable = np.where(now_ns - seen_ns <= self._max_age_ns, last, np.nan)
        filled = _filled(np.vstack((usable, rows)))[1:]
        present = ~np.isnan(rows).all(axis=0)
        last[present], seen_ns[present] = filled[-1][present], now_ns
        return filled[~np.isnan(filled).any(axis=1)]

    def _of(self, sensor: str) -> tuple[Values, Values]:
        """Return the values of a sensor (NaN: none yet), and their times."""
        held = self._sensors.get(sensor)
        if held is not None:
            self._sensors.move_to_end(sensor)
            return held
        if len(self._sensors) >= self._max_sensors:
            self._sensors.popitem(last=False)
        count = len(self._max_age_ns)
        held = self._sensors[sensor] = (np.full(count, np.nan), np.zeros(count))
        return held


def _filled(rows: Values) -> Values:
    """Replace each NaN by the value above it."""
    places = np.where(np.isnan(rows), 0, np.arange(len(rows))[:, np.newaxis])
    np.maximum.accumulate(places, axis=0, out=places)
    return rows[places, np.arange(rows.shape[1])]
