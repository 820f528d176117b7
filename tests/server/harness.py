"""What the server tests share: a server process, requests over http.client and over bare sockets, a runner whose lines
scripts/test_summary counts. Standard library only."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

ROOT = os.environ.get("TANDEM_SOURCE_ROOT", os.path.join(os.path.dirname(__file__), "..", ".."))
os.environ.setdefault("TANDEM_MODELS", os.path.join(ROOT, "models"))
# Sanitizer builds are several times slower; the runner of the suite says so.
PATIENCE = float(os.environ.get("TANDEM_TEST_PATIENCE", "30"))


# Prometheus text, version 0.0.4, as far as it is used.
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\[\\"n])*)"')
SAMPLE = re.compile(rf'tandem_(?P<name>\w+)(\{{(?P<labels>{LABEL.pattern}(,{LABEL.pattern})*)\}})? (?P<value>\d+(\.\d+)?)')


class Server:
    """A server process. command: argv up to and without the port; the URL is the first line of its output."""

    def __init__(self, *command, ready=True, env=None):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        url = self.process.stdout.readline().strip()
        if not url.startswith("http://"):
            raise RuntimeError(f"{command} said {url!r}: {self.process.stderr.read()}")
        self.url = url
        self.host, _, port = url[len("http://"):].rpartition(":")
        self.host = self.host.strip("[]")
        self.port = int(port)
        if ready:
            self.wait_ready()

    def wait_ready(self):
        def is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(self.process.stderr.read())
            return self.get("/health")[0] == 200
        wait_for(is_ready, "the server to load")

    def request(self, method, path, body=None, headers=None, timeout=PATIENCE):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.read(), response.headers
        finally:
            connection.close()

    def get(self, path, **more):
        status, body, _ = self.request("GET", path, **more)
        return status, json.loads(body) if body else None

    def post(self, path, body, **more):
        status, answer, _ = self.request("POST", path, body=body, **more)
        return status, json.loads(answer) if answer else None

    def stream(self, path, body, **more):
        """The data of all events; the last must be [DONE]."""
        status, answer, headers = self.request("POST", path, body={**body, "stream": True}, **more)
        assert status == 200, answer
        assert headers["Content-Type"].startswith("text/event-stream"), headers["Content-Type"]
        return events(answer.decode())

    def socket(self, receive_buffer=None):
        s = socket.socket(socket.AF_INET)
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.settimeout(PATIENCE)
        s.connect((self.host, self.port))
        return s

    def raw(self, data, half_close=False):
        """Sends bytes, returns all that comes until the server closes (or PATIENCE)."""
        with self.socket() as s:
            with contextlib.suppress(ConnectionError):
                s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            return read_all(s)

    def metrics(self):
        """{name without tandem_: {labels: value}}; labels are a sorted tuple of pairs."""
        found = {}
        for line in self.request("GET", "/metrics")[1].decode().splitlines():
            sample = None if line.startswith("#") else SAMPLE.fullmatch(line)
            assert sample or re.fullmatch(r"# (HELP|TYPE) tandem_\w+ .+", line), line
            if sample:
                labels = [(name, re.sub(r"\\.", lambda m: ESCAPES[m.group()], value)) for name, value in LABEL.findall(sample["labels"] or "")]
                values = found.setdefault(sample["name"], {})
                assert tuple(sorted(labels)) not in values, line
                values[tuple(sorted(labels))] = float(sample["value"])
        return found

    def metric(self, name):
        return self.metrics()[name][()]

    def stop(self, number=signal.SIGTERM, timeout=PATIENCE):
        """Signals it and returns (exit code, stderr)."""
        if self.process.poll() is None and number is not None:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, err

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        """A server that still runs must end well: sanitizers speak through the exit code."""
        if self.process.poll() is None and not failure:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
            code, err = self.stop()
            assert code == 0, (code, err)
        elif self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def read_all(s):
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := s.recv(65536):
            data += chunk
    return data


def read_until(s, mark):
    data = b""
    while mark not in data:
        chunk = s.recv(65536)
        if not chunk:
            raise AssertionError(f"closed before {mark!r}, after {data[-300:]!r}")
        data += chunk
    return data


def post_bytes(path, body, extra=""):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n{extra}\r\n".encode() + text


def events(text):
    parts = [e for e in text.split("\n\n") if e]
    data = [e[len("data: "):] for e in parts if e.startswith("data: ")]
    assert all(e.startswith(("data: ", ":")) for e in parts), parts
    assert data[-1] == "[DONE]", data[-1]
    return [json.loads(d) for d in data[:-1]]


def wait_for(condition, what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(ConnectionError):
            if condition():
                return
        time.sleep(0.01)
    raise AssertionError(f"waited {seconds:.0f} s for {what}")


class Lines(unittest.TextTestResult):
    """One line a test, as cmocka writes them."""

    def addSuccess(self, test):
        super().addSuccess(test)
        print("[       OK ]", test.id().split(".", 1)[-1], flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        print("[  FAILED  ]", test.id().split(".", 1)[-1], flush=True)

    addError = addFailure


def main():
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=0, resultclass=Lines)
    sys.exit(not unittest.main(exit=False, testRunner=runner).result.wasSuccessful())
