"""Reads a time as learning platforms write it.

    ISO 8601, Canvas    2026-03-01T10:00:00Z, 2026-03-01 10:00, 2026-03-01 10:00:00 UTC
    Gradescope          2026-03-01 10:00:00 -0800, 2026-03-01 10:00:00.123456000 Z
    Moodle              Sunday, 1 March 2026, 10:00 AM; Sunday, March 1, 2026, 10:00 AM;
                        the same in German, French, Spanish, Italian, Portuguese, Dutch

A time whose text names no zone is naive. ``3/1/2026 10:00`` is refused: some countries write the month first, and some
the day.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

FIRST_YEAR, LAST_YEAR = 2000, 2100
_MAX_CHARACTERS = 100
_CLOCK = r"(?P<hour>\d{1,2})[:.h](?P<minute>\d\d)(?::(?P<second>\d\d))?(?: ?(?P<half>[ap])\.? ?m\.?)?"
_ISO = re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<hour>\d\d):(?P<minute>\d\d)"
                  r"(?::(?P<second>\d\d)(?:[.,]\d{1,9})?)? ?(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d)?", re.IGNORECASE)
_DAY_FIRST = re.compile(r"(?:[^\W\d][\w-]*\.?,? )?(?P<day>\d{1,2})\.? (?:de )?(?P<name>[^\W\d]+)\.?,? (?:de )?"
                        rf"(?P<year>\d{{4}}),? (?:[^\W\d]+ )?{_CLOCK}", re.IGNORECASE)
_MONTH_FIRST = re.compile(r"(?:[^\W\d]+\.?, )?(?P<name>[^\W\d]+)\.? (?P<day>\d{1,2}), (?P<year>\d{4}),? "
                          rf"(?:[^\W\d]+ )?{_CLOCK}", re.IGNORECASE)
#: The months in English, German, French, Spanish, Italian, Portuguese and Dutch.
_MONTHS = ("january januar janvier enero gennaio janeiro januari",
           "february februar février febrero febbraio fevereiro februari", "march märz mars marzo marzo março maart",
           "april april avril abril aprile abril april",
           "may mai mai mayo maggio maio mei", "june juni juin junio giugno junho juni",
           "july juli juillet julio luglio julho juli", "august august août agosto agosto agosto augustus",
           "september september septembre septiembre settembre setembro september",
           "october oktober octobre octubre ottobre outubro oktober",
           "november november novembre noviembre novembre novembro november",
           "december dezember décembre diciembre dicembre dezembro december")
_SHORT = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTHS = {name: number for number, (names, short) in enumerate(zip(_MONTHS, _SHORT), start=1)
          for name in (*names.split(), short)}


def read_time(text: str) -> datetime:
    """Return the time. Raise ValueError, with the text and what is expected, if it is none or not in 2000 to 2100."""
    plain = " ".join(text.split())
    match = None
    if len(plain) <= _MAX_CHARACTERS:
        match = next(filter(None, (form.fullmatch(plain) for form in (_ISO, _DAY_FIRST, _MONTH_FIRST))), None)
    try:
        if match is not None:
            return _time(match.groupdict())
    except (ValueError, KeyError):
        pass
    raise ValueError(f"{plain[:_MAX_CHARACTERS]!r} is not a time from {FIRST_YEAR} to {LAST_YEAR}; write it like "
                     "2026-03-01 10:00, followed by the zone if you know it: Z or +01:00")


def _time(fields: dict[str, str]) -> datetime:
    month = int(fields["month"]) if "month" in fields else MONTHS[fields["name"].lower()]
    hour = int(fields["hour"])
    if half := fields.get("half"):
        if not 1 <= hour <= 12:
            raise ValueError("on a clock of 12 hours")
        hour = hour % 12 + 12 * (half.lower() == "p")
    if not FIRST_YEAR <= int(fields["year"]) <= LAST_YEAR:
        raise ValueError("out of the range")
    zone = fields.get("zone")
    return datetime(int(fields["year"]), month, int(fields["day"]), hour, int(fields["minute"]),
                    int(fields["second"] or 0), tzinfo=_zone(zone) if zone else None)


def _zone(text: str) -> timezone:
    if text.upper() in ("Z", "UTC", "GMT"):
        return timezone.utc
    hours, minutes = int(text[1:3]), int(text[-2:])
    if minutes > 59:
        raise ValueError("not an offset")
    return timezone((1 if text[0] == "+" else -1) * timedelta(hours=hours, minutes=minutes))
