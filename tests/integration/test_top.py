"""`rota top` on a terminal of its own, while its servers come and go."""

from __future__ import annotations

import re
from contextlib import closing

from rota.sched.store import open_store

from tests.integration.conftest import party_on
from tests.integration.terminal import Terminal

FRAME = b"\x1b[H"
"""rich sends the cursor home before it draws the screen anew."""


class Top(Terminal):
    """What its screen shows."""

    @property
    def screen(self) -> str:
        """The last frame that is whole."""
        frames = self.drawn.split(FRAME)
        return frames[-2].decode(errors="replace") if len(frames) > 2 else ""

    @property
    def degraded(self) -> list[str]:
        """The words of the picture's first line."""
        found = re.search(r"degraded: ([a-z_]+(?:, [a-z_]+)*)", self.screen)
        return found[1].split(", ") if found else []


def test_it_shows_that_servers_are_away_comes_back_by_itself_and_leaves_the_terminal_as_it_was(
    make_postgres, node, node_url, tmp_path
):
    database = make_postgres()
    open_store(database.url).migrate()
    with party_on(database.url, node_url, tmp_path) as party, closing(Top(party.env, "top")) as top:
        party.start("scheduler")
        party.until("a picture with its scheduler", lambda: "64 owned" in top.screen)
        node.crash()
        party.until("the broker to be missed", lambda: "broker" in top.degraded)
        database.crash()
        party.until("the store to be missed", lambda: "store away for" in top.screen)
        database.start()
        party.until("the picture to come back", lambda: top.screen and "store away" not in top.screen)
        node.start()
        party.until("the broker to be back", lambda: top.degraded == ["no_worker"])
        assert top.press(b"q") == 0
        assert top.settings() == top.before
