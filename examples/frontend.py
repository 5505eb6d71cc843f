#!/usr/bin/env python3
"""A web front end for export-queue, as small as it can be. For the idea and not for the open internet.

    EXPORT_QUEUE_CONFIG=/etc/export-queue/config.toml examples/frontend.py [PORT]

    GET /War%20and%20Peace.epub?lang=en   asks for the book and answers at once:
        200  the file
        202  it waits or is being made: {"state", "position", "eta_seconds", …}, ask again after Retry-After seconds
        404  there is no such book            502  the book could not be made, with the reason
        400, 403  not like this               503  busy, ask again after Retry-After seconds
                                              500  the service is set up wrongly: the log says how
The two things that must not look alike are "busy" (come back) and "broken" (do not).
"""

import http.server
import json
import os
import shutil
import subprocess
import sys
import urllib.parse

PROGRAM = os.environ.get("EXPORT_QUEUE_BIN", "export-queue")
TYPES = {"epub": "application/epub+zip", "pdf": "application/pdf", "html": "text/html; charset=utf-8",
         "mobi": "application/x-mobipocket-ebook", "azw3": "application/vnd.amazon.mobi8-ebook"}


def ask(title, form, lang):
    """Asks for an export: its exit code and its status object (or an object with "error").

    A list of arguments, so nothing in a title reaches a shell; "--" first, so none is taken for an option. It takes
    milliseconds: a request never makes the book itself.
    """
    arguments = [PROGRAM, "--json", "request", "--format=" + form]  # max_queued_per_client: "--client=" + address
    if lang:
        arguments.append("--lang=" + lang)
    arguments += ["--", title]
    run = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
    try:
        return run.returncode, json.loads(run.stdout)
    except ValueError:
        # A program that says nothing readable is our fault and not the reader's.
        return 1, {"error": {"message": run.stderr.decode(errors="replace")}}


def http_status(code, answer):
    if code == 0:
        return 200
    if code in (3, 4, 6):  # queued, started; absent: it ended between two looks, so ask again
        return 202
    if code == 5:
        return 404 if answer.get("reason") == "source_missing" else 502
    return {2: 400, 75: 503, 77: 403 if answer.get("reason") == "denied" else 500}.get(code, 500)


class FrontEnd(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        address = urllib.parse.urlsplit(self.path)
        title, dot, form = urllib.parse.unquote(address.path[1:]).rpartition(".")
        lang = urllib.parse.parse_qs(address.query).get("lang", [""])[0]
        if not dot or "\0" in title + form + lang:
            return self.say(400, {"message": "ask for /TITLE.FORMAT"})
        try:
            code, answer = ask(title, form, lang)
            if code == 0:
                return self.send_file(answer, form)
        except (OSError, ValueError, subprocess.TimeoutExpired) as fault:
            code, answer = 1, {"error": {"message": str(fault)}}
        status = http_status(code, answer)
        if status == 500:
            self.log_error("export-queue ended with %d: %s", code, json.dumps(answer))
            answer = {"message": "the export service is out of order"}
        return self.say(status, answer)

    def send_file(self, answer, form):
        """Streams the file. Its path stays openable for some time after the answer (serve_grace): open it at once."""
        with open(answer["path"], "rb") as book:
            self.send_response(200)
            self.send_header("Content-Type", TYPES.get(form, "application/octet-stream"))
            self.send_header("Content-Length", str(os.fstat(book.fileno()).st_size))
            self.send_header("Content-Disposition",
                             "attachment; filename*=UTF-8''" + urllib.parse.quote(f"{answer['title']}.{form}", safe=""))
            self.end_headers()
            # Behind nginx: instead of the next line send X-Accel-Redirect with the path, and nginx does the work.
            shutil.copyfileobj(book, self.wfile)

    def say(self, status, answer):
        # What is for readers; path, meta and the like are not.
        shown = ("state", "reason", "message", "position", "eta_seconds", "progress", "retry_after_seconds", "error")
        body = json.dumps({name: answer[name] for name in shown if answer.get(name) is not None}).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        wait = answer.get("poll_after_seconds") if status == 202 else answer.get("retry_after_seconds")
        if status in (202, 502, 503):
            self.send_header("Retry-After", str(max(1, round(wait or 5))))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    print(f"http://127.0.0.1:{port}/TITLE.FORMAT", file=sys.stderr)
    http.server.ThreadingHTTPServer(("127.0.0.1", port), FrontEnd).serve_forever()
