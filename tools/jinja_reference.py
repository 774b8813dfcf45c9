"""Renders a chat template as the models' own tools do: the oracle of tools/mkchat.py and
tests/diff/chat_diff.py. Needs the package jinja2."""
import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Raised(Exception):
    """The template itself said that it cannot render this conversation."""


def raise_exception(message):
    raise Raised(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what a model wrote; here it only renders its inside."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def compile_template(text, now=None):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: (
        now or datetime.datetime.now()).strftime(form)
    return environment.from_string(text)


def render(template, messages, generation_prompt, continue_final=False, **variables):
    """The text, or Raised. `developer` counts as system, as the server does it before rendering.
    With continue_final the text ends where the last message's content does, found as the models'
    tools find it: a blank content, or one that the template changes, gives ValueError."""
    messages = [{"role": "system" if m["role"] == "developer" else m["role"],
                 "content": m["content"] or ""} for m in messages]
    text = template.render(messages=messages, add_generation_prompt=generation_prompt, **variables)
    if not continue_final:
        return text
    final = messages[-1]["content"]
    if not final.strip():
        raise ValueError("a blank message cannot be found")
    at = text.rindex(final.strip())
    kept = final.lstrip()
    if text[at:at + len(kept)] != kept:
        kept = final.strip()
    return text[:at + len(kept)]
