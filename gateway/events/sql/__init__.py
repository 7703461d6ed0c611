"""SQL of event rules: `SELECT payload.t AS t FROM "fleet/+/temp" WHERE t > 30`.

The dialect is a part of SQL; docs/events.md describes it. A statement is parsed by sqlglot (`parse`) and compiled to
expressions (`compile`, `functions`), which are evaluated for each event (`expressions`, `calculations`). Whatever is
not of the dialect is refused, with the part that is not understood.
"""
