"""Crontabs as they are found: variables, `%`, a user column, CRLF, no last newline; each line by its number."""

import json

import pytest
from rota.cli.main import app
from rota.sched.crontab import Entry, Remark, read_crontab
from typer.testing import CliRunner


def read(text, **options):
    return list(read_crontab(text, **options))


def the_entry(text, **options):
    (entry,) = (each for each in read(text, **options) if isinstance(each, Entry))
    return entry


def test_variables_hold_for_the_lines_below_them():
    first, second, third = read("1 * * * * a\nPATH=/opt/bin\n'X' = \" y \"\n2 * * * * b\nPATH=\n3 * * * * c")
    assert [first.env, second.env, third.env] == [{}, {"PATH": "/opt/bin", "X": " y "}, {"PATH": "", "X": " y "}]
    assert [first.line, second.line, third.line] == [1, 4, 6]


def test_a_zone_holds_for_the_lines_below_it_and_so_does_a_random_delay():
    first, second = read("0 9 * * * a\nCRON_TZ=Asia/Tokyo\nRANDOM_DELAY=45\n0 9 * * * b", tz="Europe/Paris")
    assert [first.schedule.tz, second.schedule.tz] == ["Europe/Paris", "Asia/Tokyo"]
    assert [first.schedule.jitter, second.schedule.jitter] == [0, 2700]


def test_lines_below_a_zone_that_does_not_exist_are_refused_until_the_next_zone():
    zone, below, entry = read("CRON_TZ=Asia/Tokio\n0 9 * * * a\nCRON_TZ=UTC\n0 9 * * * b")
    assert (zone.line, "did you mean 'Asia/Tokyo'" in zone.why) == (1, True)
    assert (below.line, "CRON_TZ of line 1" in below.why) == (2, True)
    assert entry.line == 4


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("date", ("date", "")),
        (r"date +\%d", ("date +%d", "")),
        ("mail -s hi root%Dear root,%%bye", ("mail -s hi root", "Dear root,\n\nbye\n")),
        (r"a\%b%c\%d", ("a%b", "c%d\n")),
        ("FOO=bar run  --x  # no comment", ("FOO=bar run  --x  # no comment", "")),
    ],
)
def test_percent_signs_are_line_breaks_of_the_input(command, expected):
    entry = the_entry(f"0 0 * * * {command}")
    assert (entry.command, entry.stdin) == expected


def test_a_system_crontab_has_the_user_before_the_command():
    entry = the_entry("17 *\t* * *\troot\tcd / && run-parts\r\n", system=True)
    assert (entry.schedule.cron, entry.user, entry.command) == ("17 * * * *", "root", "cd / && run-parts")
    assert "no command after the user" in read("@daily root", system=True)[0].why


def test_macros_blank_lines_and_comments():
    assert [each.line for each in read("\n# a\n  # 0 0 * * * x\n\t@daily x\n\n@hourly y")] == [4, 6]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("@reboot x", "schedulers start and stop"),
        ("0 22, 10 * * * x", "beside the comma of '22,'"),
        ("0 0 31 2 * x", "never fires"),
        ("0 0 * * *", "there is no command"),
        ("hello", "neither NAME=value nor five fields"),
        ("0 0 * * * caf\udce9", "not UTF-8"),
    ],
)
def test_what_is_no_schedule_is_refused_with_its_reason(line, told):
    (refused,) = read(line)
    assert isinstance(refused, Remark)
    assert refused.refused
    assert told in refused.why


def test_an_entry_has_one_name_wherever_its_line_stands_and_the_same_line_twice_has_two():
    def names(text):
        done = CliRunner().invoke(app, ["import", "crontab", "-", "--dry-run", "--json"], input=text)
        assert done.exit_code == 0
        return [row["name"] for row in map(json.loads, done.output.splitlines())]

    one, two = names("0 1 * * * a\n0 2 * * * b\n")
    assert names("# moved\n0 2 * * * b\n0 1 * * * a\n") == [two, one]
    assert names("0 1 * * * a\n0 1 * * * a\n") == [one, f"{one}-2"]
    assert names("0 1 * * * a\n") != names("X=1\n0 1 * * * a\n")
