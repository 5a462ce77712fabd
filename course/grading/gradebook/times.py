"""Time zones, durations and deadlines.

A day is a day of the calendar: a deadline at 23:59 that is one day later is at 23:59, also in the night in which the
clocks change. Hours and minutes are elapsed time.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from course.grading.gradebook.fields import MAX_SHOWN, Table, guess, shown

_UNITS = {"day": 24 * 60, "hour": 60, "minute": 1}
_PART = re.compile(r"\s*(\d{1,6})\s*(day|hour|minute)s?\s*")
_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)")
#: No duration of a term is longer, and every deadline can be moved by it.
MAX_DAYS = 400
YEARS = range(2000, 2200)


@dataclass(frozen=True)
class Duration:
    days: int = 0
    minutes: int = 0

    @property
    def about_minutes(self) -> int:
        return self.days * _UNITS["day"] + self.minutes

    def __str__(self) -> str:
        hours, minutes = divmod(self.minutes, 60)
        parts = [count(number, unit) for unit, number in (("day", self.days), ("hour", hours), ("minute", minutes))
                 if number]
        return " ".join(parts) or "0 minutes"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def after(moment: datetime, duration: Duration, zone: tzinfo) -> datetime:
    """Return the moment ``duration`` later: first the days of the calendar in ``zone``, then the elapsed minutes."""
    local = moment.astimezone(zone)
    if duration.days:
        local = latest(local.replace(tzinfo=None) + timedelta(days=duration.days), zone)
    return local.astimezone(timezone.utc) + timedelta(minutes=duration.minutes)


def latest(local: datetime, zone: tzinfo) -> datetime:
    """Return the last moment at which the clocks of ``zone`` show ``local``.

    When the clocks go back, they show an hour twice; the second counts. When they go forward, they skip an hour: a time
    in it is read with the offset that was valid before.
    """
    return max((local.replace(tzinfo=zone, fold=fold) for fold in (0, 1)), key=lambda one: one.astimezone(timezone.utc))


def started(moment: datetime, deadline: datetime, unit: str, zone: tzinfo) -> int:
    """Return how many hours or days after ``deadline`` have started at ``moment``; 0 until the deadline."""
    late = moment - deadline
    if late <= timedelta(0):
        return 0
    if unit == "hour":
        return -(-late // timedelta(hours=1))  # rounded up
    days = max(late // timedelta(days=1) - 1, 0)  # a change of the clocks makes a day shorter or longer
    while after(deadline, Duration(days), zone) < moment:
        days += 1
    return days


def write_moment(moment: datetime, zone: tzinfo) -> str:
    """Write a time as a person reads it: ``2026-10-12 23:59:00 CEST``."""
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def read_zone(table: Table, key: str) -> tzinfo | None:
    """Return the time zone of the file: an IANA name or an offset. None if it is missing or wrong."""
    name = table.fields.get(key)
    if name is None:
        return None
    if not isinstance(name, str):
        table.complain(key, f'is {shown(name)}, must be a text such as "Europe/Berlin" or "+02:00".')
        return None
    if match := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        if offset <= timedelta(hours=14) and int(match[3]) < 60:
            return timezone(offset if match[1] == "+" else -offset)
    try:
        if name != "localtime":  # it would depend on the machine
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfo("Europe") is a folder
        pass
    known = available_timezones()
    if known or _OFFSET.fullmatch(name):
        table.complain(key, f'is {shown(name)}, must be an IANA name such as "Europe/Berlin", or an offset from '
                            f'-14:00 to +14:00.{_near_zone(name, known)}')
    else:
        table.complain(key, f"is {shown(name)}, but this machine has no database of time zones. "
                            'Run `pip install tzdata`, or write an offset such as "+02:00".')
    return None


def _near_zone(name: str, known: Collection[str]) -> str:
    """Return advice on a name that is no time zone. EST for CEST would be harmful, so only places are suggested."""
    places = [one for one in known if "/" in one and not one.startswith("Etc/")]
    if re.fullmatch(r"[A-Z]{2,5}", name):
        return f' {name} is an abbreviation; write the name of a city in the time zone, such as "Europe/Berlin".'
    same_city = sorted(one for one in places if one.rpartition("/")[2].casefold() == name.casefold())
    return f" Did you mean {same_city[0]}?" if same_city else guess(name, places)


def read_duration(table: Table, key: str, is_positive: bool = True) -> Duration | None:
    """Return a duration such as ``"2 days"`` or ``"1 day 12 hours"``; None if it is missing or wrong."""
    return to_duration(table, key, table.fields[key], is_positive) if table.has(key) else None


def to_duration(table: Table, key: str, value: object, is_positive: bool = True) -> Duration | None:
    """Return a duration; None if it is wrong."""
    text = value if isinstance(value, str) and len(value) <= MAX_SHOWN else ""
    parts = _PART.findall(text) if re.fullmatch(f"(?:{_PART.pattern}){{1,3}}", text) else []
    units = [unit for _, unit in parts]
    duration = Duration(*(sum(int(number) * (_UNITS[unit] if unit != "day" else 1) for number, unit in parts
                              if (unit == "day") is is_days) for is_days in (True, False)))
    least = 1 if is_positive else 0
    if not parts or len({*units}) < len(units) or not least <= duration.about_minutes <= MAX_DAYS * _UNITS["day"]:
        table.complain(key, f'is {shown(value)}, must be a duration such as "15 minutes", "36 hours" or "1 day 12 '
                            f'hours", from {least} minutes to {MAX_DAYS} days.')
        return None
    return duration


def read_moment(table: Table, key: str, zone: tzinfo | None) -> datetime | None:
    """Return a deadline: a date and a time, local to ``zone`` or with an offset. None if it is missing or wrong."""
    return to_moment(table, key, table.fields[key], zone) if table.has(key) else None


def to_moment(table: Table, key: str, value: object, zone: tzinfo | None) -> datetime | None:
    """Return a deadline in UTC; None if it is wrong."""
    example = "write it without quotes, with date and time: 2026-10-12T23:59:00"
    if not isinstance(value, datetime):
        what = ", a date without a time" if isinstance(value, date) else ""
        table.complain(key, f"is {shown(value)}{what}; {example}.")
    elif value.year not in YEARS:
        table.complain(key, f"is {shown(value)}, must be in the years {YEARS[0]} to {YEARS[-1]}.")
    elif value.tzinfo is not None:
        return value.astimezone(timezone.utc)
    elif zone is None:
        if not any(one.startswith("timezone ") for one in table.problems):
            table.complain(key, f'is {shown(value)}, but no time zone is known: write timezone = "Europe/Berlin" at '
                                "the beginning of the file, or an offset: 2026-10-12T23:59:00+02:00.")
    elif not _exists(value, zone):
        table.complain(key, f"is {shown(value)}, but the clocks of {zone} skip this hour. Write an earlier or a "
                            "later time.")
    else:
        return latest(value, zone).astimezone(timezone.utc)
    return None


def _exists(local: datetime, zone: tzinfo) -> bool:
    moment = local.replace(tzinfo=zone)
    return moment.astimezone(timezone.utc).astimezone(zone).replace(tzinfo=None) == local
