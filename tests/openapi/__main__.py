"""`python -m tests.openapi`: generate what follows from the protos of the management surface: the Python code, the
OpenAPI description, the table of rights in docs/management.md, and the table of calls in docs/security.md."""

from tests.openapi.protos import ROOT, compile_protos

compile_protos(f"--python_out={ROOT}", f"--pyi_out={ROOT}")

from tests.openapi import calls, description, rights_table  # noqa: E402  they read the generated code

description.FILE.write_text(description.text(), encoding="utf-8")
page = rights_table.PAGE.read_text(encoding="utf-8")
rights_table.PAGE.write_text(rights_table.with_table(page), encoding="utf-8")
calls.PAGE.write_text(calls.with_table(calls.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
