"""Both clients on a real store: inside and outside of the caller's transaction."""

import multiprocessing
import threading

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from rota.sched.app import App
from rota.sched.client import AsyncClient, Client
from rota.sched.errors import Conflict, NotFound, NotMigrated, Unreachable, UsageError
from rota.sched.requests import Submission
from rota.sched.when import after, cron, every
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.conftest import BOUND

app = App("billing")


@app.handler(queue="mail")
def send(to: str) -> None:
    """A handler."""


@pytest.fixture
def client(store_url):
    with Client.open(store_url) as client:
        yield client


def jobs(store_url):
    with psycopg.connect(store_url) as connection:
        return {row[0] for row in connection.execute("select id::text from rota.job")}


def driver_url(store_url):
    return store_url.replace("postgresql://", "postgresql+psycopg://")


def test_a_submitted_job_is_stored_and_the_same_key_gives_the_same_id(client, store_url):
    one = client.submit(send.call("a"), key="k")
    two = client.submit(send.call("a"), key="k")
    assert (one.duplicate, two.duplicate) == (False, True)
    assert one.id == two.id
    assert jobs(store_url) == {one.id}


def test_a_key_used_with_another_request_is_a_conflict_that_names_the_job(client, store_url):
    ref = client.submit(send.call("a"), key="k")
    with pytest.raises(Conflict, match=f"key 'k' belongs to job {ref.id}"):
        client.submit(send.call("b"), key="k")
    assert jobs(store_url) == {ref.id}


def test_a_name_keeps_a_schedule_single_while_it_lives(client):
    one = client.submit(send.call("a"), every(3600), name="hourly")
    assert client.submit(send.call("a"), every(3600), name="hourly").id == one.id
    with pytest.raises(Conflict, match="name 'hourly'"):
        client.submit(send.call("a"), every(60), name="hourly")


def test_submit_many_answers_in_order_and_knows_keys_repeated_within(client, store_url):
    refs = client.submit_many(
        [
            send.call("a"),
            (send.call("b"), after(60)),
            Submission(send.call("c"), key="k"),
            Submission(send.call("c"), key="k"),
        ]
    )
    assert [ref.duplicate for ref in refs] == [False, False, False, True]
    assert refs[2].id == refs[3].id
    assert jobs(store_url) == {ref.id for ref in refs}


def test_submit_many_stores_none_where_one_conflicts(client, store_url):
    with pytest.raises(Conflict):
        client.submit_many([send.call("a"), Submission(send.call("b"), key="k"), Submission(send.call("c"), key="k")])
    assert jobs(store_url) == set()
    assert not client.submit(send.call("c"), key="k").duplicate


def test_nothing_to_submit_is_no_error(client):
    assert client.submit_many([]) == []


def test_threads_share_a_client(client, store_url):
    threads = [threading.Thread(target=lambda n=n: client.submit(send.call(str(n)))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(jobs(store_url)) == 8


def child_submits(client):
    client.submit(send.call("child"))
    client.close()


def test_a_forked_child_and_its_parent_go_on_with_the_same_client(client, store_url):
    client.submit(send.call("before"))
    child = multiprocessing.get_context("fork").Process(target=child_submits, args=(client,))
    child.start()
    child.join(BOUND)
    assert child.exitcode == 0
    client.submit(send.call("after"))
    assert len(jobs(store_url)) == 3


def test_a_store_without_schema_says_what_to_run(empty_store_url):
    with Client.open(empty_store_url) as client, pytest.raises(NotMigrated, match="rota migrate"):
        client.submit(send.call("a"))


def test_a_cancelled_job_is_gone_and_a_second_cancel_finds_nothing(client, store_url):
    ref = client.submit(send.call("a"), after(3600))
    assert client.cancel(ref.id).job
    assert jobs(store_url) == set()
    assert client.cancel(ref.id).nothing


def test_what_never_was_is_not_found(client):
    with pytest.raises(NotFound):
        client.cancel("0199c1d2-7b31-7c0e-8000-000000000000")
    with pytest.raises(NotFound):
        client.get("no-such-name")


def test_a_job_is_found_by_id_and_name(client):
    ref = client.submit(send.call("a"), every(3600), name="hourly")
    for text in (ref.id, ref.id[:18], "hourly"):
        assert client.get(text).to_json()["id"] == ref.id


# Changes of what is stored.


def test_a_schedule_is_changed_by_name_in_the_clients_name_or_anothers(client):
    client.submit(send.call("a"), cron("0 2 * * *", tz="Europe/Paris"), name="nightly")
    done = client.update("nightly", every("1h"), args={"to": "b"}, by="anna", reason="more often")
    assert (done.changed, done.version) == (True, 2)
    assert client.update("nightly", timeout="5s", version=2).version == 3
    job = client.get("nightly").job
    assert (job["schedule"], job["args"], job["policy"]) == ({"every": 3600.0}, {"to": "b"}, {"timeout": 5.0})
    assert [change["by"] for change in job["changes"]] == ["anna", client.name]
    with pytest.raises(Conflict, match="changed by anna"):
        client.update("nightly", misfire="skip", version=1)
    with pytest.raises(UsageError, match="nobody"):
        client.update("nightly", nobody=1)
    with pytest.raises(UsageError, match="put jitter into it"):
        client.update("nightly", every("1h"), jitter=5)
    with pytest.raises(UsageError, match="nothing to change"):
        client.update("nightly")
    with pytest.raises(UsageError, match="names a run"):
        client.update("nightly@2027-01-01T00:00:00Z", misfire="skip")


def test_a_change_without_an_answer_is_sent_again_and_is_one(client):
    """Without the note's id in the job's `changes` an extra run would be added by each try."""
    ref = client.submit(send.call("a"), every("1h"), name="hourly")
    whole = client._link.run

    def lost(txn):
        whole(txn)
        if txn.name in {"update", "trigger"}:
            client._link.run = whole
            raise Unreachable("the answer is lost")
        return whole(txn)

    client._link.run = lost
    done = client.update("hourly", every="2h", run_now=True)
    assert (done.version, bool(done.run), len(client.get(ref.id).runs)) == (2, True, 1)
    client._link.run = lost
    assert client.trigger("hourly").key.job_id == ref.id
    assert (len(client.get(ref.id).runs), len(client.get(ref.id).job["changes"])) == (2, 2)


async def test_the_async_client_changes_pauses_resumes_and_triggers(store_url):
    async with AsyncClient.open(store_url) as client:
        await client.submit(send.call("a"), every("1h"), name="hourly")
        assert (await client.update("hourly", misfire="skip")).version == 2
        assert (await client.pause("hourly", reason="why")).paused
        assert (await client.trigger("hourly")).paused
        assert (await client.resume("hourly")).changed
        assert (await client.pause_queue("mail")).paused
        assert (await client.resume_queue("mail")).changed


# The caller's transaction.


def test_a_job_in_a_psycopg_transaction_is_there_only_with_its_commit(client, store_url):
    with psycopg.connect(store_url, row_factory=dict_row) as connection:
        client.submit(send.call("undone"), connection=connection)
        connection.rollback()
        ref = client.submit(send.call("kept"), connection=connection)
        assert jobs(store_url) == set()
    assert jobs(store_url) == {ref.id}


@pytest.mark.parametrize("opened", [sa.Connection, Session])
def test_a_job_in_an_sqlalchemy_transaction_is_there_only_with_its_commit(client, store_url, opened):
    engine = sa.create_engine(driver_url(store_url))
    with engine.connect() if opened is sa.Connection else Session(engine) as connection:
        client.submit(send.call("undone"), connection=connection)
        connection.rollback()
        ref = client.submit(send.call("kept"), connection=connection)
        assert jobs(store_url) == set()
        connection.commit()
    engine.dispose()
    assert jobs(store_url) == {ref.id}


def test_a_conflict_leaves_the_callers_transaction_as_it_was(client, store_url):
    first = client.submit(send.call("a"), key="k")
    with psycopg.connect(store_url) as connection:
        with pytest.raises(Conflict):
            client.submit_many([send.call("x"), Submission(send.call("b"), key="k")], connection=connection)
        ref = client.submit(send.call("kept"), connection=connection)
    assert jobs(store_url) == {first.id, ref.id}


def test_a_connection_that_commits_by_itself_is_refused(client, store_url):
    with psycopg.connect(store_url, autocommit=True) as connection:
        with pytest.raises(UsageError, match="autocommit"):
            client.submit(send.call("a"), connection=connection)
        with connection.transaction():
            ref = client.submit(send.call("a"), connection=connection)
    assert jobs(store_url) == {ref.id}


def test_what_is_no_connection_is_refused_with_what_to_give(client):
    with pytest.raises(UsageError, match=r"give a psycopg\.Connection"):
        client.submit(send.call("a"), connection="postgresql://")


# The asyncio twin.


async def test_the_async_client_does_the_same(store_url):
    async with AsyncClient.open(store_url) as client:
        ref = await client.submit(send.call("a"), after(3600), key="k")
        assert (await client.submit(send.call("a"), after(3600), key="k")).duplicate
        with pytest.raises(Conflict):
            await client.submit(send.call("b"), key="k")
        assert len(await client.submit_many([send.call("b"), send.call("c")])) == 2
        assert (await client.cancel(ref.id)).job
        assert len(jobs(store_url)) == 2


async def test_the_async_client_takes_part_in_async_transactions(store_url):
    engine = create_async_engine(driver_url(store_url))
    kept = set()
    async with AsyncClient.open(store_url) as client:
        async with await psycopg.AsyncConnection.connect(store_url) as connection:
            await client.submit(send.call("undone"), connection=connection)
            await connection.rollback()
            kept.add((await client.submit(send.call("a"), connection=connection)).id)
        async with engine.begin() as connection:
            kept.add((await client.submit(send.call("b"), connection=connection)).id)
        async with AsyncSession(engine) as session:
            kept.add((await client.submit(send.call("c"), connection=session)).id)
            await session.commit()
        async with engine.connect() as connection:
            await client.submit(send.call("undone"), connection=connection)
    await engine.dispose()
    assert jobs(store_url) == kept
