"""tandem chat on a pseudo-terminal, as a person sees it, and on pipes, as a script does.

No timing is asserted: every step waits for the text that must come."""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "server"))
from harness import PATIENCE, main  # noqa: E402

TANDEM = os.environ["TANDEM_BIN"]
PROMPT = b"\x1b[?2004h> "
COLOR = re.compile(rb"\x1b\[[0-9;]*m")
# What the model sees and says becomes visible: a template that asks nothing of it but to go on, for ever so long.
ENDLESS = "{{ messages[-1].content }}"


class Terminal:
    """tandem chat nano on a terminal of its own. Output that was not expected yet stays in self.seen."""

    def __init__(self, *args, **env):
        self.dir = tempfile.TemporaryDirectory()
        home = self.dir.name
        env = {"TERM": "xterm", "LC_ALL": "C", "NO_COLOR": "", "HOME": home, "XDG_STATE_HOME": home, **env}
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(env)
            os.execv(TANDEM, [TANDEM, "chat", "nano", "--temperature", "0", *args])

    def expect(self, mark):
        """Reads until mark; returns what came before it."""
        end = time.monotonic() + PATIENCE
        while mark not in self.seen:
            if time.monotonic() > end or not select.select([self.fd], [], [], PATIENCE)[0]:
                raise AssertionError(f"waited for {mark!r}, saw {self.seen[-2000:]!r}")
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:
                chunk = b""
            if not chunk:
                raise AssertionError(f"ended before {mark!r}, after {self.seen[-2000:]!r}")
            self.seen += chunk
        before, _, self.seen = self.seen.partition(mark)
        return before

    def send(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        while data:
            data = data[os.write(self.fd, data[:1024]):]

    def ask(self, text):
        """Sends a line; returns what is shown up to the next prompt, the echo of the line left out."""
        self.send(text + "\r")
        self.expect(b"\x1b[?2004l")
        return self.expect(PROMPT)

    def history(self):
        with open(os.path.join(self.dir.name, "tandem", "chat_history"), encoding="utf-8") as f:
            return f.read().splitlines()

    def ended(self):
        """Exit code; the rest of the output is in self.seen."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and select.select([self.fd], [], [], PATIENCE)[0]:
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:
                break
            if not chunk:
                break
            self.seen += chunk
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
        self.dir.cleanup()


def template(directory, text):
    path = os.path.join(directory, "template.jinja")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def shown(data):
    return COLOR.sub(b"", data).decode()


class TestTerminal(unittest.TestCase):
    def test_an_answer_streams_and_is_followed_by_its_rate(self):
        with Terminal("-n", "24") as t:
            self.assertIn("/help", shown(t.expect(PROMPT)))
            answer = t.ask("Write a function that reverses a string.")
            self.assertIn(b"\x1b[0;36m", answer)  # nano answers with a block of code
            self.assertIn("```python\r\n", shown(answer))
            self.assertRegex(shown(answer), r"\[24 tokens, \d+\.\d tokens/s, \d+\.\d\d a round.*\]\r\n$")
            t.send(b"\x04")
            self.assertEqual(t.ended(), 0)

    def test_commands(self):
        with Terminal("-n", "8") as t:
            t.expect(PROMPT)
            self.assertIn("/method NAME", shown(t.ask("/help")))
            self.assertIn("drafts: auto", shown(t.ask("/method")))
            self.assertIn("drafts: none", shown(t.ask("/method none")))
            self.assertNotIn("accepted", shown(t.ask("Say something.")))
            self.assertIn("drafts: ngram", shown(t.ask("/method ngram ")))
            self.assertIn('no drafts called "magic"', shown(t.ask("/method magic")))
            self.assertIn("drafts: auto", shown(t.ask("/method auto")))
            self.assertIn("temperature: 0.5", shown(t.ask("/temperature 0.5")))
            self.assertIn("temperature must be in [0, 2]", shown(t.ask("/temperature 7")))
            self.assertIn("must be a number", shown(t.ask("/temperature hot")))
            self.assertIn("temperature: 0.5", shown(t.ask("/temperature")))
            self.assertIn("was set", shown(t.ask("/system Be brief.")))
            self.assertIn("a new conversation", shown(t.ask("/clear")))
            self.assertIn("was replaced", shown(t.ask("/system Be long.")))
            self.assertIn("was removed", shown(t.ask("/system")))
            self.assertIn('no command "/nope"', shown(t.ask("/nope")))
            t.send("/quit\r")
            self.assertEqual(t.ended(), 0)

    def test_ctrl_c_stops_the_answer_and_then_the_chat(self):
        with tempfile.TemporaryDirectory() as d, Terminal("--chat-template", template(d, ENDLESS)) as t:
            t.expect(PROMPT)
            t.send("def f(x):\r")
            t.expect(b"\x1b[?2004l")
            t.expect(b"f(x) f(x)")  # and so on, 4000 tokens long
            modes = termios.tcgetattr(t.fd)[3]
            self.assertTrue(modes & termios.ICANON and modes & termios.ISIG)
            t.send(b"\x03")
            self.assertIn(", stopped]", shown(t.expect(PROMPT)))
            self.assertIn("temperature: 0", shown(t.ask("/temperature")))  # the chat goes on
            t.send("half a line")
            t.expect(b"half a line")
            t.send(b"\x03")
            self.assertNotIn("once more", shown(t.expect(PROMPT)))
            t.send(b"\x03")
            self.assertIn("once more leaves", shown(t.expect(PROMPT)))
            t.send(b"\x03")
            self.assertEqual(t.ended(), 0)

    def test_a_pasted_text_is_one_message(self):
        with tempfile.TemporaryDirectory() as d, Terminal("-n", "1", "--chat-template", template(d, ENDLESS)) as t:
            t.expect(PROMPT)
            t.send(b"\x1b[200~first\r\nsecond \xe4\xbd\xa0\xe5\xa5\xbd\n\tthird\x07\x1b[201~")
            t.expect(b"third")
            t.ask("")
            t.send("one\x1b\rtwo")  # Alt-Enter
            t.ask("")
            long = "".join(f"line {i} of a long text\r" for i in range(400))
            t.send(f"\x1b[200~{long}\x1b[201~")
            t.expect(b"399")
            t.ask("")
            lines = t.history()
            self.assertEqual(lines[:2], ["first\\nsecond 你好\\n\tthird", "one\\ntwo"])
            self.assertEqual(lines[2], long.replace("\r", "\\n"))
            self.assertEqual(len(lines), 3)

    def test_text_survives_editing_whatever_the_locale(self):
        for locale in "C", "C.UTF-8":
            with Terminal(LC_ALL=locale) as t:
                t.expect(PROMPT)
                t.send("/system grüße 你x\x7f好 🙂é\x7f\x1b[D\x1b[D→")  # delete, two to the left, insert
                t.ask("")
                self.assertEqual(t.history(), ["/system grüße 你好→ 🙂"])
                t.send(b"/system \xff\xe4\xb8y\xf0\x9f")
                t.ask("")
                self.assertEqual(t.history()[1], "/system \ufffd\ufffdy\ufffd")
                self.assertIn(b"was replaced", t.ask("\x1b[A\x1b[A"))  # up, up: the first one again
                self.assertEqual(t.history()[2], t.history()[0])

    def test_plain_where_colours_are_not_wanted(self):
        for env in {"NO_COLOR": "1"}, {"TERM": "dumb"}:
            with Terminal("-n", "24", **env) as t:
                t.expect(b"> ")
                t.send("Write a function that reverses a string.\n")
                answer = t.expect(b"tokens/s")
                self.assertIn(b"```python\r\n", answer)
                self.assertIsNone(COLOR.search(answer))

    def test_a_signal_leaves_the_terminal_as_it_was(self):
        with Terminal() as t:
            before = termios.tcgetattr(t.fd)
            t.expect(PROMPT)
            self.assertFalse(termios.tcgetattr(t.fd)[3] & termios.ICANON)
            os.kill(t.pid, signal.SIGTERM)
            t.expect(b"\x1b[?2004l")
            os.waitpid(t.pid, 0)
            t.pid = 0
            self.assertEqual(termios.tcgetattr(t.fd)[:4], before[:4])


class TestPipes(unittest.TestCase):
    def chat(self, text, *args):
        return subprocess.run([TANDEM, "chat", "nano", "--temperature", "0", "-n", "16", *args], input=text.encode(),
                              capture_output=True, timeout=PATIENCE * 4, check=False)

    def test_answers_alone_on_standard_output(self):
        done = self.chat("Write a function that reverses a string.\n/quit\nnever read\n")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertTrue(done.stdout.startswith(b"```python\n"), done.stdout)
        self.assertNotIn(b"\x1b", done.stdout)
        self.assertNotIn(b"tokens/s", done.stdout)

    def test_a_person_whose_answers_go_to_a_file(self):
        master, slave = pty.openpty()
        with subprocess.Popen([TANDEM, "chat", "nano", "--temperature", "0", "-n", "4"], stdin=slave,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
            os.close(slave)
            self.assertEqual(chat.stderr.read(2), b"> ")  # the prompt
            os.write(master, b"Hello\n/quit\n")
            out, err = chat.communicate(timeout=PATIENCE)
            os.close(master)
            self.assertTrue(out.startswith(b"```python\n"), out)
            self.assertEqual((chat.returncode, err), (0, b"> "))

    def test_too_long_a_text_is_refused_and_the_chat_goes_on(self):
        done = self.chat("Hello\n" + "word " * 10000 + "\nHello\n")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout.count(b"```python\n"), 2)
        self.assertEqual(done.stderr, b"tandem: the prompt is longer than 4096 tokens "
                                      b"(/clear begins a new conversation)\n")

    def test_what_goes_into_the_prompt(self):
        with tempfile.TemporaryDirectory() as d:
            dump = template(d, "{% if messages|length > 2 %}{{ raise_exception(messages|tojson) }}{% endif %}x")
            done = self.chat("/system Be brief.\n//etc is a folder\nsecond\n", "--chat-template", dump)
        said = done.stderr.decode()
        self.assertEqual(done.returncode, 0)
        self.assertIn('"Be brief."', said)
        self.assertIn('"/etc is a folder"', said)
        self.assertIn('"second"', said)


if __name__ == "__main__":
    main()
