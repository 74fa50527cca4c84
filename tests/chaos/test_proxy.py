import contextlib
import socket
import threading

import pytest
from proxy import Proxy


@pytest.fixture
def echo():
    """The port of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(link):
            with link, contextlib.suppress(OSError):
                while data := _received(link):
                    link.sendall(data)

        def serve():
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(link,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _received(link):
    try:
        return link.recv(100)
    except OSError:
        return b""


def test_a_connection_is_cut_after_so_many_bytes(echo):
    with Proxy(echo) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as link:
        link.sendall(b"before")
        assert link.recv(100) == b"before"
        cutting = threading.Thread(target=proxy.cut, args=(9, None, 5.0))
        cutting.start()
        got = b""
        while cutting.is_alive():
            try:
                link.sendall(b"abc")
            except OSError:
                break
            got += _received(link)
        cutting.join()
        assert len(got) <= 9


def test_one_of_several_connections_is_cut_and_the_others_go_on(echo):
    with Proxy(echo) as proxy, contextlib.ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port))) for _ in range(3)]
        assert [answers(link) for link in links] == [True] * 3
        assert proxy.cut(0, 0.5, 0.1) == 1
        assert sorted(answers(link) for link in links) == [False, True, True]


def answers(link):
    with contextlib.suppress(OSError):
        link.sendall(b"hello")
        return _received(link) == b"hello"
    return False
