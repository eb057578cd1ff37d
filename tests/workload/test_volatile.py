from __future__ import annotations

import pytest

from kvrelease.workload.volatile import VolatilePrefix, Volatility, volatile_prefixes, volatile_spots
from tests.workload.builders import chat_body, prompt, prompt_set


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Session 6f9619ff-8b86-d011-b42d-00cf4fc964ff began.", Volatility.UUID),
        ("Log of 2025-03-01T12:34:56Z", Volatility.DATE_TIME),
        ("Printed 3/14/2025, 09:15", Volatility.DATE_TIME),
        ("It began on March 3rd, 2025 at 10:00", Volatility.DATE_TIME),
        ("Current date: 2025-03-01.", Volatility.CURRENT_DATE),
        ("Today is Tuesday, 4 March 2025.", Volatility.CURRENT_DATE),
        ("Today's date is the 4th March 2025", Volatility.CURRENT_DATE),
        ("Today Date: 26 Jul 2024", Volatility.CURRENT_DATE),
        ("The time is 14:05.", Volatility.CURRENT_DATE),
        ("Timestamp: 1733000000", Volatility.TIMESTAMP),
        ("It is {{date}}.", Volatility.TEMPLATE),
        ("It is {{ current_date() }}.", Volatility.TEMPLATE),
        ("It is {CURRENT_DATETIME}.", Volatility.TEMPLATE),
        ("It is {{ strftime_now('%d %b %Y') }}.", Volatility.TEMPLATE),
        ("Session id: 8fa2-77", Volatility.REQUEST_ID),
        ("user_id=12345", Volatility.REQUEST_ID),
    ],
)
def test_changing_text_is_found(text: str, kind: Volatility) -> None:
    assert kind in [found for found, _ in volatile_spots(f"You help. {text} Be kind.")]


@pytest.mark.parametrize(
    "text",
    [
        "The policy of 2024-01-01 replaced that of 1 May 2019.",
        "We are open from 9:00 to 17:30 today and every day.",
        "Ask for the order number and the date of birth, never for a user id or a session id.",
        "Version 1.2.3 of section 2024-2025; call 1733000000.",
        'Write {name} and {{answer}} as JSON: {"city": "text"}.',
        "A date and time is needed for bookings; today we ask nobody.",
    ],
)
def test_lasting_text_is_left_alone(text: str) -> None:
    assert volatile_spots(text) == ()


def test_one_finding_names_all_prompts_behind_it_and_its_place() -> None:
    dated = "You help. Current date: 2025-03-01."
    prompts = prompt_set(
        prompt("a", chat_body("One?", system=dated)),
        prompt("b", chat_body("Current date: 2025-03-01?", system="You help.")),
        prompt("c", chat_body("Two?", system=dated)),
        prompt("d", {"prompt": "Long ago. " * 200 + "Today is 2025-03-01"}),
        prompt("e", {"prompt": "Today is 2025-03-01"}),
    )
    assert volatile_prefixes(prompts) == (
        VolatilePrefix(volatility=Volatility.CURRENT_DATE, character=1, prompt_ids=("e",)),
        VolatilePrefix(volatility=Volatility.CURRENT_DATE, character=11, prompt_ids=("a", "c")),
    )
