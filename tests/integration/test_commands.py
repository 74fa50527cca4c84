"""Shell commands as jobs: imported from a crontab, run by a worker whose app has asked for the handler."""

from __future__ import annotations

import json

APP = """
from rota import App
from rota.commands import rota_command

app = App("night")
app.handler(queue="cron")(rota_command)
"""


def test_commands_run_once_have_their_output_as_result_and_stop_when_they_are_cancelled(party, tmp_path):
    (tmp_path / "night.py").write_text(APP, encoding="utf-8")
    party.env |= {"PYTHONPATH": str(tmp_path), "ROTA_APP": "night:app"}
    party.start("scheduler")
    party.start("worker")
    known = "select count(*) from rota.handler where name = 'rota_command'"
    party.until("the handler to be known", lambda: party.value(known))
    submit = ("submit", "rota_command", "--attempts", "1", "--args")
    done, failed, stopped = (
        party.rota(*submit, json.dumps(args)).strip()
        for args in (
            {"command": "cat; echo $ROTA_ATTEMPT", "stdin": "hello\n"},
            {"command": "echo why; exit 3"},
            {"command": "sleep 600"},
        )
    )
    party.until("it to run", lambda: party.value("select state from rota.run where job_id = %s", stopped) == "running")
    party.rota("cancel", stopped, "--running")
    outcome = "select outcome from rota.history where job_id = %s"
    party.until("the first to end", lambda: party.value(outcome, done) == "succeeded")
    party.until("the second to die", lambda: party.value("select count(*) from rota.dead where job_id = %s", failed))
    party.until("the third to stop", lambda: party.value(outcome, stopped) == "cancelled")
    shown = json.loads(party.rota("show", done, "--json"))
    assert shown["history"][0]["result"] == {"exit": 0, "output": "hello\n1\n"}
    assert "exit status 3 of 'echo why; exit 3': why" in party.rota("show", failed, "--json")
