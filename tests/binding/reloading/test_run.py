"""A reload in place under load, and every way in which it goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from kvrelease.artifacts import JsonObject, Verdict
from kvrelease.binding.reloading.plan import Ending, Outcome, Step
from kvrelease.binding.reloading.result import ReplicaReload
from kvrelease.errors import Refused, UsageError
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.record import Record
from tests.binding.middleware.serving import ADAPTER, NAMESPACE, NEXT
from tests.binding.reloading.swapping import Gated, Swapping, gated, reloaded
from tests.engines.scripted import Break, ScriptedEngine
from tests.verify.deployments import chat_body, deployment, question, recorded

CLIENTS, REQUESTS = 8, 200
SWAP = "/collective_rpc"


@pytest.fixture
def replica() -> Iterator[Gated]:
    with gated() as found:
        yield found


@pytest.fixture(scope="module")
def golden() -> Record:
    with ScriptedEngine(release="new") as clean:
        return recorded(clean, deployed=deployment("new"))


def body(number: int) -> JsonObject:
    asked = chat_body("returns", question(number % 5))
    return {**asked, "model": "scripted", "max_tokens": 3, "logprobs": True, "top_logprobs": 5}


def told(answer: httpx.Response) -> object:
    return answer.json()["choices"][0]["logprobs"]


def clean_answers(release: str) -> list[object]:
    with ScriptedEngine(release=release) as clean:
        return [told(httpx.post(f"{clean.url}/v1/chat/completions", json=body(number))) for number in range(5)]


def only(report: Any) -> ReplicaReload:
    (found,) = report.replicas
    assert isinstance(found, ReplicaReload)
    return found


def outcomes(found: ReplicaReload) -> dict[Step, Outcome]:
    return {one.step: one.outcome for one in found.steps}


def serves(replica: Gated) -> str:
    """Whose answers a client gets, and in which namespace."""
    answer = replica.front.send(body(0))
    if answer.status_code != 200:
        return f"{answer.status_code}, retry after {answer.headers.get('retry-after')}"
    release = next(name for name in ("old", "new") if told(answer) == clean_answers(name)[0])
    return f"{release} in {answer.headers['kvrelease-namespace']}"


OLD_GOES_ON, NEW_SERVES, CLOSED = f"old in {NAMESPACE}", f"new in {NEXT}", "503, retry after 5"


def test_under_load_every_answer_belongs_wholly_to_one_release(replica: Gated, golden: Record) -> None:
    replica.engine.may_swap.clear()
    numbers, is_over = itertools.count(), threading.Event()
    answers: list[tuple[int, httpx.Response]] = []
    begun = threading.Event()

    def client() -> None:
        with httpx.Client(base_url=replica.url, trust_env=False, timeout=60) as http:
            for number in numbers:
                if number >= REQUESTS and is_over.is_set():
                    return
                answers.append((number, http.post("/v1/chat/completions", json=body(number))))
                if len(answers) > 40:
                    begun.set()

    with ThreadPoolExecutor(max_workers=CLIENTS + 1) as pool:
        clients = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            assert begun.wait(60)
            swap = pool.submit(reloaded, replica, golden=golden, reload_timeout_s=60.0)
            assert replica.engine.swapping.wait(60)
            replica.front.until(waiting=CLIENTS)
            replica.engine.may_swap.set()
            found = only(swap.result())
        finally:  # else they would ask for ever
            is_over.set()
            replica.engine.may_swap.set()
        for one in clients:
            one.result()

    assert found.verdict is Verdict.PASS
    assert (found.ending, found.held) == (Ending.NEW, CLIENTS)
    assert found.hold_s is not None
    assert found.hold_s > 0
    assert sorted(number for number, _ in answers) == list(range(len(answers)))
    assert len(answers) >= REQUESTS
    assert {answer.status_code for _, answer in answers} == {200}
    of_namespace = {NAMESPACE: clean_answers("old"), NEXT: clean_answers("new")}
    for number, answer in answers:
        assert told(answer) == of_namespace[answer.headers["kvrelease-namespace"]][number % 5]
    assert {answer.headers["kvrelease-namespace"] for _, answer in answers} == {NAMESPACE, NEXT}


def test_without_a_golden_record_the_new_weights_are_served_and_unproven(replica: Gated) -> None:
    found = only(reloaded(replica))
    assert (found.ending, found.verdict) == (Ending.NEW, Verdict.INCONCLUSIVE)
    assert "no golden record" in found.reason
    assert "kvrelease verify" in str(found.next_step)
    assert serves(replica) == NEW_SERVES


def test_without_anything_to_ask_it_says_so(replica: Gated) -> None:
    found = only(reloaded(replica, asks=False))
    assert (found.ending, found.verdict) == (Ending.NEW, Verdict.INCONCLUSIVE)
    assert "unproven" in found.reason


def test_an_engine_that_says_done_and_kept_the_old_weights_stays_closed(replica: Gated, golden: Record) -> None:
    replica.engine.loads = "old"
    found = only(reloaded(replica, golden=golden))
    assert (found.ending, found.verdict) == (Ending.CLOSED, Verdict.FAIL)
    assert outcomes(found)[Step.ASK_NEW] is Outcome.DISAGREES
    assert "restart the engine" in str(found.next_step)
    assert serves(replica) == CLOSED


def test_questions_to_the_weights_leave_nothing_where_users_look(replica: Gated, golden: Record) -> None:
    reloaded(replica, golden=golden)
    salts = [seen.body["cache_salt"] for seen in replica.engine.generations()]
    assert salts
    assert not {NAMESPACE, NEXT} & set(salts)


def test_a_swap_that_fails_before_anything_changed_leaves_the_old_release_serving(replica: Gated) -> None:
    replica.engine.break_with(Break.CRASHING, path=SWAP)
    found = only(reloaded(replica))
    assert outcomes(found)[Step.SWAP] is Outcome.FAILED
    assert outcomes(found)[Step.ASK_AGAIN] is Outcome.DONE
    assert (found.ending, found.verdict) == (Ending.OLD, Verdict.FAIL)
    assert serves(replica) == OLD_GOES_ON


def test_a_swap_that_fails_with_nothing_to_ask_stays_closed(replica: Gated) -> None:
    replica.engine.break_with(Break.CRASHING, path=SWAP)
    assert only(reloaded(replica, asks=False)).ending is Ending.CLOSED
    assert serves(replica) == CLOSED


def test_a_swap_that_is_refused_needs_no_question_to_go_back(replica: Gated) -> None:
    replica.engine.break_with(Break.FORBIDDEN, path=SWAP)
    found = only(reloaded(replica, asks=False))
    assert outcomes(found)[Step.SWAP] is Outcome.REFUSED
    assert serves(replica) == OLD_GOES_ON


def test_a_swap_without_an_answer_may_still_go_on_and_stays_closed(replica: Gated) -> None:
    replica.engine.break_with(Break.HANG, path=SWAP)
    found = only(reloaded(replica, reload_timeout_s=0.5))
    assert outcomes(found)[Step.SWAP] is Outcome.LOST
    assert found.ending is Ending.CLOSED
    assert serves(replica) == CLOSED


def test_an_engine_that_dies_in_the_middle_of_the_swap_stays_closed(replica: Gated) -> None:
    replica.engine.take_breakage = dying()  # type: ignore[method-assign, assignment]
    found = only(reloaded(replica))
    assert outcomes(found)[Step.ASK_AGAIN] not in (Outcome.DONE, Outcome.UNPROVEN)
    assert found.ending is Ending.CLOSED
    assert serves(replica) == CLOSED


def dying() -> Callable[[str], Break | None]:
    """Everything breaks from the swap on."""
    is_dead = False

    def take(path: str) -> Break | None:
        nonlocal is_dead
        is_dead = is_dead or path == SWAP
        return Break.CRASHING if is_dead else None

    return take


def test_a_drain_that_takes_too_long_lets_the_old_release_go_on(replica: Gated) -> None:
    replica.engine.break_with(Break.HANG, times=1)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(httpx.post, f"{replica.url}/v1/chat/completions", json=body(0), timeout=2)
        replica.front.until(in_flight=1)
        found = only(reloaded(replica, drain_timeout_s=0.2))
        assert outcomes(found) == {
            Step.HOLD: Outcome.DONE,
            Step.DRAIN: Outcome.LATE,
            Step.RESUME_OLD: Outcome.DONE,
        }
        assert SWAP not in [seen.path for seen in replica.engine.requests]
        assert serves(replica) == OLD_GOES_ON
        with pytest.raises(httpx.TimeoutException):
            slow.result()


def test_an_engine_that_died_is_never_opened(replica: Gated) -> None:
    replica.engine.break_with(Break.DROP, path="/v1/c")
    found = only(reloaded(replica))
    # It died before the weights were touched: nothing of ours stands between it and what its clients see.
    assert outcomes(found)[Step.ASK_OLD] not in (Outcome.DONE, Outcome.UNPROVEN)
    assert Step.SWAP not in outcomes(found)
    assert found.ending is Ending.OLD


def test_who_waits_too_long_is_turned_away_and_the_reload_goes_on(replica: Gated, golden: Record) -> None:
    replica.engine.may_swap.clear()
    with ThreadPoolExecutor() as pool:
        swap = pool.submit(reloaded, replica, golden=golden, hold_timeout_s=0.5)
        assert replica.engine.swapping.wait(20)
        waited = replica.front.send(body(0))
        assert (waited.status_code, waited.headers["retry-after"]) == (503, "5")
        replica.engine.may_swap.set()
        found = only(swap.result())
    assert (found.ending, found.verdict) == (Ending.NEW, Verdict.PASS)
    assert serves(replica) == NEW_SERVES


def test_a_replica_that_was_left_closed_can_be_reloaded_and_never_goes_back_to_the_old(
    replica: Gated, golden: Record
) -> None:
    replica.engine.loads = "old"
    assert only(reloaded(replica, golden=golden)).ending is Ending.CLOSED
    replica.engine.break_with(Break.FORBIDDEN, path=SWAP, times=1)
    assert only(reloaded(replica, golden=golden)).ending is Ending.CLOSED
    replica.engine.loads = None
    assert only(reloaded(replica, golden=golden)).verdict is Verdict.PASS
    assert serves(replica) == NEW_SERVES


@pytest.mark.parametrize("during", [Step.DRAIN, Step.SWAP])
def test_an_interruption_goes_back_where_nothing_was_touched_and_stays_closed_else(
    replica: Gated, during: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C cancels the task once, as `cli.interrupt` does."""
    from kvrelease.binding.reloading import drive as driving

    original = driving.Drive._done

    async def cut_short(self: driving.Drive, step: Step) -> driving.Told:
        if step is during:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_later(0.05, task.cancel)
            if step is Step.DRAIN:
                await asyncio.sleep(10)
        return await original(self, step)

    monkeypatch.setattr(driving.Drive, "_done", cut_short)
    if during is Step.SWAP:
        replica.engine.break_with(Break.HANG, path=SWAP)
    report = reloaded(replica)
    assert report.interrupted
    found = only(report)
    assert outcomes(found)[during] is Outcome.INTERRUPTED
    assert found.ending is (Ending.OLD if during is Step.DRAIN else Ending.CLOSED)
    assert serves(replica) == (OLD_GOES_ON if during is Step.DRAIN else CLOSED)


def test_replicas_are_taken_one_after_the_other_and_none_after_one_that_failed(golden: Record) -> None:
    with gated() as first, gated() as second, gated() as third:
        second.engine.loads = "old"
        report = reloaded([first, second, third], golden=golden)
        assert [one.ending for one in report.replicas] == [Ending.NEW, Ending.CLOSED]
        assert len(report.not_reached) == 1
        assert report.verdict is Verdict.FAIL
        assert serves(first) == NEW_SERVES
        assert serves(third) == OLD_GOES_ON


def test_a_dry_run_changes_nothing(replica: Gated) -> None:
    report = reloaded(replica, is_dry=True)
    assert (report.verdict, only(report).ending) == (None, None)
    assert {seen.method for seen in replica.engine.requests} == {"GET"}
    assert serves(replica) == OLD_GOES_ON


def test_another_token_is_refused_before_anything_is_held(replica: Gated) -> None:
    with pytest.raises(UsageError, match="another control token") as error:
        reloaded(replica, token="quite another token")
    assert "quite another" not in str(error.value)
    assert serves(replica) == OLD_GOES_ON


def test_an_engine_without_the_middleware_is_not_reloaded() -> None:
    with Swapping() as engine:
        bare = Gated(engine, front=Port(engine.port))  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="no kvrelease middleware"):
            reloaded(bare)
        assert SWAP not in [seen.path for seen in engine.requests]


class Port:
    def __init__(self, port: int) -> None:
        self.port = port


def test_a_middleware_without_a_control_token_says_what_is_missing() -> None:
    with gated(environment={"KVRELEASE_CONTROL_TOKEN": ""}) as replica:
        with pytest.raises(UsageError, match="no control token") as error:
            reloaded(replica)
        assert "KVRELEASE_CONTROL_TOKEN" in str(error.value.hint)


def test_adapters_with_namespaces_of_their_own_are_not_left_behind() -> None:
    environment = {"KVRELEASE_NAMESPACES": f'{{"support": "{ADAPTER}"}}'}
    with gated(environment=environment) as replica, pytest.raises(UsageError, match="adapters"):
        reloaded(replica)


def test_an_engine_that_cannot_load_in_place_is_told_before_anything_is_held() -> None:
    with gated(has_dev_routes=False) as replica, pytest.raises(UsageError, match="development mode"):
        reloaded(replica)


def test_a_gate_that_somebody_else_holds_is_left_to_them(replica: Gated) -> None:
    hold = replica.front.control("hold").json()["hold"]
    with pytest.raises(Refused, match="somebody else holds"):
        reloaded(replica)
    assert replica.front.control("resume", hold=hold, namespace=NAMESPACE).status_code == 200


def test_the_cache_is_emptied_only_where_that_is_allowed(replica: Gated) -> None:
    reloaded(replica)
    assert "/reset_prefix_cache" not in [seen.path for seen in replica.engine.requests]
    reloaded(replica, allows_flush=True)
    assert "/reset_prefix_cache" in [seen.path for seen in replica.engine.requests]


def test_the_ledger_learns_what_ended_and_what_began(replica: Gated, golden: Record) -> None:
    with Ledger(IN_MEMORY) as ledger:
        reloaded(replica, golden=golden, ledger=ledger)
        began, ended = ledger.events()
    assert (began.command, began.namespace, began.verdict) == ("reload", NEXT, Verdict.PASS)
    assert (ended.namespace, ended.replica) == (NAMESPACE, replica.url)
    assert "ended here" in ended.reason


def test_steps_are_told_with_their_seconds(replica: Gated, golden: Record) -> None:
    found = only(reloaded(replica, golden=golden))
    assert [one.step for one in found.steps] == [
        Step.HOLD,
        Step.DRAIN,
        Step.ASK_OLD,
        Step.SWAP,
        Step.ASK_NEW,
        Step.RESUME_NEW,
    ]
    assert all(one.seconds >= 0 for one in found.steps)
    assert found.hold_s is not None
    assert found.hold_s <= sum(one.seconds for one in found.steps) + 1
