"""Files, commands, and what they answered."""

import json
import shlex
import subprocess

from behave import given, then, when


@given('a file "{path}" with')
def write_file(context, path):
    target = context.agents.work / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(context.text + "\n")


@given('a git repository "{path}" with all files committed')
def make_repository(context, path):
    folder = context.agents.work / path
    folder.mkdir(parents=True, exist_ok=True)
    for argv in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-q", "--allow-empty", "-m", "start"],
    ):
        subprocess.run(["git", *argv], cwd=folder, env=context.agents.env, check=True)


@when('I run "agents {arguments}"')
def run(context, arguments):
    context.outcome = context.agents.run(*shlex.split(arguments))


@when('in "{folder}" I run "agents {arguments}"')
def run_in(context, folder, arguments):
    argv = shlex.split(arguments)
    context.outcome = context.agents.run(*argv, cwd=context.agents.work / folder)


@then('"agents {arguments}" exits with {code:d}')
def exits_with(context, arguments, code):
    context.agents.run(*shlex.split(arguments)).expect(code)


@then("the exit code is {code:d}")
def exit_code(context, code):
    context.outcome.expect(code)


@then('the output contains "{text}"')
def output_contains(context, text):
    assert text in context.outcome.stdout, context.outcome


@then('the file "{path}" contains "{text}"')
def file_contains(context, path, text):
    assert text in (context.agents.work / path).read_text()


@then('there is no file "{path}"')
def no_file(context, path):
    assert not (context.agents.work / path).exists()


@then('the JSON field "{field}" is {value}')
def json_field_is(context, field, value):
    found = lookup(context.outcome.json, field)
    assert found == json.loads(value), f"{field} is {found!r}: {context.outcome}"


@then('the JSON has a field "{field}"')
def json_has_field(context, field):
    assert lookup(context.outcome.json, field) is not None, context.outcome


def lookup(value, field):
    """`data.steps.0.id` in nested dictionaries and lists."""
    for key in field.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value
