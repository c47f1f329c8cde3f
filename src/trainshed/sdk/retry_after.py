"""When a server wants to be asked again."""

from __future__ import annotations


def retry_after(text: str | None) -> float | None:
    """Seconds from a ``Retry-After`` header: a number or an HTTP date."""
    if not text:
        return None
    if text.strip().isdigit():
        return float(text)
    import email.utils  # noqa: PLC0415 - hardly any answer has a date
    from datetime import UTC, datetime  # noqa: PLC0415 - as above

    try:
        moment = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
