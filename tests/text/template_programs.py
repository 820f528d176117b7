"""Small random templates: a grammar of what docs/spec/models.md section 7 lists, and of what lies around it."""

TEXTS = ["", "a", "abc", " a b ", "a,b,,c", "é😀", "\\n", "x\\n", "Hello World", "12", "-3.5", "'q'", "<b>&", "a\\tb", "AbC dEf", "ß", "你好"]
NUMBERS = ["0", "1", "-1", "2", "3", "7", "10", "2.5", "0.1", "1e3", "-0.0", "1_000", "True", "False"]
NAMES = ["x", "s", "n", "l", "d", "t", "e", "m", "missing", "messages", "tools", "add_generation_prompt"]
FILTERS = ["length", "trim", "upper", "lower", "title", "capitalize", "tojson", "string", "safe", "list", "first", "last", "join", "items", "int",
           "float", "abs", "sort", "unique", "reverse", "sum", "min", "max", "count", "default('z')", "default('z', true)", "d(1)", "join(', ')",
           "join('-', attribute='role')", "replace('a', 'XX')", "replace('a', '', 1)", "indent", "indent(2, true)", "indent(width=1, first=True)",
           "tojson(indent=2)", "tojson(indent=4)", "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "tojson(ensure_ascii=true)",
           "map(attribute='role') | list", "map('upper') | list", "map('length') | list", "select('string') | list", "select | list",
           "reject('none') | list", "selectattr('role') | list", "selectattr('role', 'equalto', 'user') | list", "rejectattr('role', '==', 'user') | list",
           "batch(2) | list", "dictsort", "round", "round(1)", "escape", "e", "reject('equalto', 1) | list", "map(attribute='a', default=0) | list",
           "list | length", "string | length", "trim('ab')", "wordcount", "groupby('role') | list | length", "sort(reverse=true)", "sort(attribute='a')",
           "format(1)", "striptags", "center(9)", "truncate(3)", "slice(2) | list", "attr('a')", "items | list", "xmlattr", "urlencode", "filesizeformat",
           "float(1.5)", "int(7)"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "true", "false",
         "even", "odd", "divisibleby(2)", "divisibleby 3", "eq 1", "equalto('a')", "ne(1)", "in [1, 'a']", "in 'abc'", "gt(1)", "lt 2", "ge(1)", "le(1)",
         "sameas(none)", "lower", "upper", "callable", "==1", "escaped", "filter"]
METHODS = ["strip()", "strip('a')", "lstrip()", "rstrip('\\n')", "split()", "split(',')", "split('b')[0]", "split('b')[-1]", "split(',', 1)", "rsplit(',', 1)",
           "startswith('a')", "endswith('c')", "startswith(('a', 'x'))", "upper()", "lower()", "title()", "capitalize()", "replace('a', 'b')", "find('b')",
           "rfind('b')", "index('b')", "count('a')", "join(['a', 'b'])", "items()", "keys()", "values()", "get('a')", "get('zz')", "get('zz', 3)", "format(1, 2)",
           "isdigit()", "isalpha()", "isspace()", "isupper()", "zfill(5)", "ljust(5)", "rjust(5, '*')", "splitlines()", "removeprefix('a')", "removesuffix('c')",
           "partition(',')", "swapcase()", "encode()", "append(1)", "pop()", "update({})", "index(1)", "copy()", "casefold()", "center(7)", "expandtabs()",
           "__class__", "_x", "a", "role", "b"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "<=", ">=", "and", "or", "in", "not in"]
SPACE = ["", "", "", " ", "\n", "  \n  ", "\t", " text ", "\n\n", "é"]


class Programs:
    def __init__(self, r):
        self.r = r
        self.context = {"x": 5, "s": "a str", "n": None, "l": [1, "b", 2.5, None, True], "d": {"a": 1, "b": [2, {"c": "é"}], "items": 3},
                        "t": "line\n  two\n", "e": [], "m": {}}
        self.messages = [{"role": "system", "content": " be "}, {"role": "user", "content": "hi"},
                         {"role": "assistant", "content": "yo", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": "z"}}}]}]

    def pick(self, *choices):
        return self.r.choice(choices)

    def tag(self, text):
        return "{%" + self.pick("", "", "", "-", "+") + " " + text + " " + self.pick("", "", "", "-") + "%}"

    def literal(self):
        kind = self.r.randrange(6)
        if kind < 2:
            return "'" + self.r.choice(TEXTS).replace("'", "\\'") + "'"
        if kind == 2:
            return self.r.choice(NUMBERS)
        return self.pick("none", "true", "false", "[]", "{}", "()", "(1,)", "[1, 2, 3]", "[3, 1, 2]", "['b', 'a']", "{'a': 1, 'b': 'x'}", "{1: 2}", "(1, 'a')",
                         "range(3)", "range(1, 6, 2)", "[[1, 2], [3]]", "messages[0]", "messages[-1].tool_calls", "loop.index0", "loop.first", "loop.last",
                         "loop.length", "loop.previtem", "loop.nextitem", "loop.revindex", "loop.depth", "loop.cycle('a', 'b')", "loop.changed(x)",
                         "ns.a", "ns.b", "f(1)", "f()", "f(b=2)", "namespace(a=1)", "dict(a=1)", "dict(a=1, b=2)['b']", "caller()")

    def expression(self, depth=3):
        if depth == 0 or self.r.random() < 0.2:
            return self.literal() if self.r.random() < 0.5 else self.r.choice(NAMES + ["i", "k", "v"])
        e = lambda: self.expression(depth - 1)
        kind = self.r.randrange(16)
        if kind < 3:
            return f"{e()} {self.r.choice(BINARY)} {e()}"
        if kind < 6:
            return f"{e()} | {self.r.choice(FILTERS)}"
        if kind < 8:
            return f"{e()} is {self.pick('', 'not ')}{self.r.choice(TESTS)}"
        if kind < 10:
            return f"{self.primary(e())}.{self.r.choice(METHODS)}"
        if kind == 10:
            return f"{self.primary(e())}[{self.pick('0', '-1', '1:', ':-1', '::-1', '::2', '1:3', repr('a'), repr('role'), '9', 'x', e())}]"
        if kind == 11:
            return f"({e()})"
        if kind == 12:
            return f"{self.pick('not ', '-', '+')}{e()}"
        if kind == 13:
            return f"{e()} if {e()}" + (f" else {e()}" if self.r.random() < 0.7 else "")
        if kind == 14:
            return f"[{e()}, {e()}]"
        return f"{{'k': {e()}, {e()}: 1}}" if self.r.random() < 0.5 else f"({e()}, {e()})"

    def primary(self, e):
        return e if self.r.random() < 0.3 else f"({e})"

    def output(self):
        e = self.expression()
        if self.r.random() < 0.5:
            e = f"({e}) | tojson" if self.r.random() < 0.7 else f"({e}) | string"
        return "{{" + self.pick("", "", "", "-", "+") + f" {e} " + self.pick("", "", "", "-") + "}}"

    def block(self, depth):
        return "".join(self.r.choice(SPACE) + self.statement(depth) for _ in range(self.r.randint(0, 3))) + self.r.choice(SPACE)

    def statement(self, depth):
        kind = self.r.randrange(18 if depth else 6)
        if kind < 4:
            return self.output()
        if kind == 4:
            return self.tag(f"set {self.pick('x', 's', 'n', 'l', 'q', 'ns.a', 'ns.b', 'd.a', 'x, s')} = {self.expression()}")
        if kind == 5:
            return self.pick("{#" + " c " + "#}", "{#- c -#}", "{# {% if %} #}\n", self.tag("break"), self.tag("continue"), "{{ '}}' }}", "{", "%}", "# x")
        if kind < 10:
            middle = self.tag(f"elif {self.expression()}") + self.block(depth - 1) if self.r.random() < 0.3 else ""
            last = self.tag("else") + self.block(depth - 1) if self.r.random() < 0.4 else ""
            return self.tag(f"if {self.expression()}") + self.block(depth - 1) + middle + last + self.tag("endif")
        if kind < 14:
            target = self.pick("i", "i", "i", "x", "k, v", "(k, v)", "i, x")
            over = self.pick(self.expression(2), "l", "messages", "messages[::-1]", "d.items()", "d | items", "range(4)", "'abc'", "m", "[[1, 2], [3, 4]]")
            test = f" if {self.expression(2)}" if self.r.random() < 0.25 else ""
            last = self.tag("else") + self.block(depth - 1) if self.r.random() < 0.2 else ""
            return self.tag(f"for {target} in {over}{test}") + self.block(depth - 1) + last + self.tag("endfor")
        if kind == 14:
            return self.tag("set q") + self.block(depth - 1) + self.tag("endset")
        if kind == 15:
            return self.tag("generation") + self.block(depth - 1) + self.tag("endgeneration")
        if kind == 16:
            return self.tag(f"filter {self.pick('upper', 'trim', 'indent', 'length', 'tojson')}") + self.block(depth - 1) + self.tag("endfilter")
        return (self.tag(f"macro {self.pick('f', 'g')}({self.pick('', 'a', 'a, b=2', 'a=1, b=x')})") + self.pick("{{ a }}", "{{ b }}{{ x }}") + self.block(depth - 1) +
                self.tag("endmacro"))

    def draw(self):
        head = self.pick("", "{% set ns = namespace(a=1) %}", "{% set ns = namespace(a=1) %}{% macro f(a, b=7) %}[{{ a }}{{ b }}]{% endmacro %}")
        return head + self.block(2)
