"""Broker URLs taken apart, and URLs without their secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rota.sched.broker.connection import parameters
from rota.sched.errors import Unreachable, UsageError
from rota.sched.urls import HEARTBEAT, mask, parse_broker


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://rota:hunter2@mq:5672/prod", "amqp://rota:***@mq:5672/prod"),
        ("postgresql://rota:hunter2@db:5432/rota", "postgresql://rota:***@db:5432/rota"),
        ("postgresql+psycopg://rota:hunter2@a,b/rota?x=1", "postgresql+psycopg://rota:***@a,b/rota?x=1"),
        ("postgresql://db/rota?user=rota&password=hunter2", "postgresql://db/rota?user=rota&password=***"),
        ("postgresql://db/rota?password=hunter2&x=1", "postgresql://db/rota?password=***&x=1"),
        ("host=db user=rota password=hunter2 dbname=rota", "host=db user=rota password=*** dbname=rota"),
        ("host=db password='hunter2 two' dbname=rota", "host=db password=*** dbname=rota"),
        ("amqp://rota:hunter2@hunter2@mq/", "amqp://rota:***@mq/"),
        ("amqp://rota:hunter2/hunter2@mq/", "amqp://rota:***@mq/"),
        ("amqp://rota:hunter2?hunter2@mq/", "amqp://rota:***@mq/"),
        ("amqp://rota@mq/", "amqp://rota@mq/"),
        ("amqp://mq/", "amqp://mq/"),
        ("sqlite:///var/rota.db", "sqlite:///var/rota.db"),
        ("local:", "local:"),
        ("rota:hunter2@mq", "rota:***@mq"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    assert mask(url) == shown


@given(st.text(min_size=8).filter(lambda text: "***" not in text), st.sampled_from(["amqp", "postgresql"]))
def test_no_password_shines_through_whatever_it_is_made_of(password, scheme):
    assert mask(f"{scheme}://rota:{password}@host:1/name") == f"{scheme}://rota:***@host:1/name"


@pytest.mark.parametrize(
    ("url", "vhost"),
    [
        ("amqp://mq", "/"),
        ("amqp://mq/", "/"),
        ("amqp://mq/%2F", "/"),
        ("amqp://mq/%2f", "/"),
        ("amqp://mq/prod", "prod"),
        ("amqp://mq/a%2Fb", "a/b"),
    ],
)
def test_the_path_names_the_vhost(url, vhost):
    assert parse_broker(url).vhost == vhost


def test_what_is_left_out_is_the_brokers_default():
    address = parse_broker("amqp://")
    assert (address.host, address.port, address.user, address.password) == ("localhost", 5672, "guest", "guest")
    assert address.heartbeat == HEARTBEAT
    assert address.tls is None


def test_user_password_and_host_are_read_and_the_password_is_in_no_repr():
    address = parse_broker("amqp://ro%40ta:hunter%2F2@[::1]:99/x?heartbeat=20&connection_timeout=1500")
    assert (address.user, address.password, address.host, address.port) == ("ro@ta", "hunter/2", "::1", 99)
    assert (address.heartbeat, address.connect_timeout) == (20, 1.5)
    assert "hunter" not in repr(address)


def test_tls_verifies_unless_it_is_told_not_to():
    address = parse_broker("amqps://mq/")
    assert address.port == 5671
    options = parameters(address, "test").ssl_options
    assert options.context.check_hostname
    assert options.server_hostname == "mq"
    careless = parameters(parse_broker("amqps://mq/?verify=verify_none&server_name_indication=other"), "test")
    assert not careless.ssl_options.context.check_hostname
    assert careless.ssl_options.server_hostname == "other"


def test_both_ways_to_name_certificates_are_understood():
    named = parse_broker("amqps://mq/?cacertfile=/ca&certfile=/c&keyfile=/k&password=hunter2").tls
    assert (
        named
        == parse_broker(
            "amqps://mq/?ssl_options={'ca_certs':'/ca','certfile':'/c','keyfile':'/k','password':'hunter2'}"
        ).tls
    )
    assert named is not None
    assert (named.ca_file, named.cert_file, named.key_file, named.key_password) == ("/ca", "/c", "/k", "hunter2")
    assert "hunter2" not in repr(named)


def test_a_certificate_that_is_not_there_is_told_with_the_url():
    with pytest.raises(Unreachable, match=r"amqps://rota:\*\*\*@mq/"):
        parameters(parse_broker("amqps://rota:hunter2@mq/?cacertfile=/nowhere/ca.pem"), "test")


@pytest.mark.parametrize(
    "url",
    [
        "http://rota:hunter2@mq/",
        "mq:5672",
        "",
        "amqp://rota:hunter2@mq//",
        "amqp://rota:hunter2@mq/a/b",
        "amqp://rota:hunter2@mq:99999/",
        "amqp://rota:hunter2@mq:port/",
        "amqp://rota:hunter2@[mq/",
        "amqp://rota:hunter2@mq/#x",
        "amqp://rota:hunter2@mq/?heartbeat=0",
        "amqp://rota:hunter2@mq/?heartbeat=soon",
        "amqp://rota:hunter2@mq/?nonsense=1",
        "amqp://rota:hunter2@mq/?cacertfile=/ca",
        "amqps://rota:hunter2@mq/?verify=perhaps",
        "amqps://rota:hunter2@mq/?ssl_options=hunter2",
        "amqps://rota:hunter2@mq/?ssl_options={'nonsense':'hunter2'}",
    ],
)
def test_a_wrong_url_is_refused_with_the_masked_value(url):
    with pytest.raises(UsageError) as refused:
        parse_broker(url)
    assert "hunter2" not in str(refused.value)
    assert "amqp://user:password@host:5672/vhost" in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
