/* Hostile templates and conversations end in a sentence: never a crash, a hang, or memory without bound. */
#include "unit/text_fixture.h"

#include "support/starve.h"
#include "text/chat_template.h"
#include "unit/random.h"

#include <stdio.h>
#include <string.h>

static Status render(const char *source, size_t n, const json_t *messages, Buf *out, Error *err)
{
    ChatTemplate *t;
    Status status = chat_template_parse(&t, source, n, err);
    if (status != OK) return status;
    ChatInput in = { messages, NULL, NULL, true };
    status = chat_template_render(t, &in, out, err);
    chat_template_close(t);
    return status;
}

static void repeat(Buf *b, const char *piece, int n)
{
    for (int i = 0; i < n; i++) buf_text(b, piece);
}

/* before, open * n, middle, close * n, after */
static void deep_nesting(void **state)
{
    static const struct {
        const char *before, *open, *middle, *close, *after;
    } rows[] = {
        { "{{ ", "(", "1", ")", " }}" },
        { "{{ ", "[", "1", "]", " }}" },
        { "{{ ", "{1:", "1", "}", " }}" },
        { "{{ ", "not ", "1", "", " }}" },
        { "{{ ", "-", "1", "", " }}" },
        { "{{ x", ".a", "", "", " }}" },
        { "{{ x", "[0]", "", "", " }}" },
        { "{{ 'a'", "|trim", "", "", " }}" },
        { "{{ 1", " if 1 else 1", "", "", " }}" },
        { "{{ 1", " if 1", "", "", " }}" },
        { "{{ ", "f(", "1", ")", " }}" },
        { "", "{% if 1 %}", "x", "{% endif %}", "" },
        { "", "{% for a in [1] %}", "x", "{% endfor %}", "" },
        { "", "{% macro f() %}", "x", "{% endmacro %}", "" },
        { "{% for ", "(", "a", ",)", " in [1] %}{% endfor %}" },
    };
    json_t *messages = json_array();
    for (int i = 0; i < COUNT(rows); i++) {
        for (int n = 10; n <= 50000; n *= 5) {
            Error err = { 0 };
            Buf source, out;
            buf_init(&source, 1 << 20);
            buf_init(&out, 1 << 24);
            buf_text(&source, rows[i].before);
            repeat(&source, rows[i].open, n);
            buf_text(&source, rows[i].middle);
            repeat(&source, rows[i].close, n);
            buf_text(&source, rows[i].after);
            Status status = render(source.data, source.len, messages, &out, &err);
            if (n > 1000) assert_int_equal(status, ERR_INPUT);
            if (status != OK) assert_string_not_equal(err.text, "");
            buf_free(&source);
            buf_free(&out);
        }
    }
    json_decref(messages);
}

/* Chains are one node each and may be long. */
static void long_chains_work(void **state)
{
    static const struct {
        const char *first, *more;
    } rows[] = { { "1", " + 1" },   { "'a'", " ~ 'a'" }, { "'a'", " + 'a'" },
                 { "1", " and 1" }, { "0", " or 0" },    { "1", " == 1" } };
    json_t *messages = json_array();
    for (int i = 0; i < COUNT(rows); i++) {
        Error err = { 0 };
        Buf source, out;
        buf_init(&source, 1 << 20);
        buf_init(&out, 1 << 20);
        buf_printf(&source, "{{ %s", rows[i].first);
        repeat(&source, rows[i].more, 20000);
        buf_text(&source, " }}");
        if (render(source.data, source.len, messages, &out, &err) != OK) fail_msg("%s", err.text);
        assert_true(out.len > 0);
        buf_free(&source);
        buf_free(&out);
    }
    json_decref(messages);
}

static void limits_are_kept(void **state)
{
    static const struct {
        const char *source, *says;
    } rows[] = {
        { "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "4000000 steps" },
        { "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels of nesting" },
        { "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ g() }}",
          "levels of nesting" },
        { "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
          "levels of nesting" },
        { "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson }}",
          "levels of nesting" },
        { "{% set n = namespace(x=[], y=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% set n.y = [n.y] %}{% "
          "endfor %}{{ n.x == n.y }}",
          "levels of nesting" },
        { "{% set n = namespace(x=[], y=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% set n.y = [n.y] %}{% "
          "endfor %}{{ n.x < n.y }}",
          "levels of nesting" },
        { "{% set n = namespace() %}{% set n.n = n %}{{ n }}", "levels of nesting" },
        { "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
          "8388608 bytes in one string" },
        { "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
          "bytes of memory" },
        { "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "limit of" },
        { "{% set s = 'x' * 999999 %}{% for i in range(99) %}{{ s }}{% endfor %}", "8388608 bytes" },
        { "{{ 'x' * 99999999999 }}", "steps" },
        { "{{ [1] * 99999999999 }}", "steps" },
        { "{{ range(99999999) }}", "range too big" },
        { "{{ ('{0}' * 99999).format('x' * 9999) }}", "8388608 bytes" },
        { "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
          "8388608 bytes" },
        { "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] "
          "%}{% endfor %}{{ n.x == n.y }}",
          "steps" },
        { "{% macro f() %}{% for i in range(9) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}", "levels of nesting" },
        { "{{ ('a' * 9999) | replace('a', 'x' * 9999) }}", "8388608 bytes" },
        { "{{ (['x' * 99999] * 9999) | join }}", "8388608 bytes" },
        { "{% set s = 'ab' * 999999 %}{{ s.strip(s) }}", "steps" },
        { "{% set s = 'a' * 1999999 %}{{ s.rfind('b' ~ s[:999999]) }}", "steps" },
        { "{% set s = 'é' * 999999 %}{% for i in range(99999) %}{{ s[500000] }}{% endfor %}", "steps" },
        { "{{ 'x' | indent(99999999) }}", "1000 columns" },
        { "{{ {'a': 1} | tojson(indent=99999999) }}", "up to 64" },
        { "{{ 9223372036854775807 + 1 }}", "too large" },
        { "{{ 3 ** 99 }}", "too large" },
        { "{{ (-9223372036854775807 - 1) // -1 }}", "too large" },
        { "{{ 99999999999999999999 }}", "too large" },
    };
    json_t *messages = json_array();
    for (int i = 0; i < COUNT(rows); i++) {
        Error err = { 0 };
        Buf out;
        buf_init(&out, 1 << 26);
        assert_int_equal(render(rows[i].source, strlen(rows[i].source), messages, &out, &err), ERR_INPUT);
        if (!strstr(err.text, rows[i].says)) fail_msg("%s: %s", rows[i].source, err.text);
        assert_int_equal(out.len, 0); /* nothing of a failed render is left */
        buf_free(&out);
    }
    json_decref(messages);
}

static void numbers_at_their_ends(void **state)
{
    static const char *const rows[][2] = {
        { "{{ (-9223372036854775807 - 1) % -1 }}", "0" },
        { "{{ 'abc'[-9223372036854775807 - 1:9223372036854775807] }}", "abc" },
        { "{{ 'abc'[::-9223372036854775807 - 1] }}", "c" },
        { "{{ [1, 2, 3][::9223372036854775807] }}", "[1]" },
        { "{{ [1][-9223372036854775807 - 1] }}{{ 'a'[9223372036854775807] }}", "" },
        { "{{ range(9223372036854775806, -9223372036854775807, -9223372036854775807) | list | length }}", "2" },
        { "{{ 1e308 * 10 }} {{ (1e308 * 10) | int }}", "inf 0" },
    };
    json_t *messages = json_array();
    for (int i = 0; i < COUNT(rows); i++) {
        Error err = { 0 };
        Buf out;
        buf_init(&out, 1 << 20);
        if (render(rows[i][0], strlen(rows[i][0]), messages, &out, &err) != OK)
            fail_msg("%s: %s", rows[i][0], err.text);
        assert_string_equal(out.data ? out.data : "", rows[i][1]);
        buf_free(&out);
    }
    json_decref(messages);
}

/* A conversation nested deeper than the parser of requests lets through. */
static void deep_messages(void **state)
{
    static const char *const sources[] = { "{{ messages }}", "{{ messages | tojson }}", "{{ messages == messages }}" };
    json_t *deep = json_array();
    for (int i = 0; i < 5000; i++) deep = json_pack("[o]", deep);
    for (int i = 0; i < COUNT(sources); i++) {
        Error err = { 0 };
        Buf out;
        buf_init(&out, 1 << 20);
        assert_int_equal(render(sources[i], strlen(sources[i]), deep, &out, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, "levels of nesting"));
        buf_free(&out);
    }
    json_decref(deep);
}

static void output_must_fit(void **state)
{
    Error err = { 0 };
    Buf out;
    json_t *messages = json_array();
    buf_init(&out, 5);
    assert_int_equal(render("123456", 6, messages, &out, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "longer than 5 bytes"));
    buf_free(&out);
    json_decref(messages);
}

/* Random damage to templates that use everything: no crash, and a sentence for each failure. */
static void damaged_templates(void **state)
{
    static const char *const files[] = { "coder", "headers", "pictures", "plain", "thinking" };
    static const char *const pieces[] = {
        "{%", "%}", "{{", "}}", "{#", "#}", "-", "(", ")", "[", "]", "{", "}", "|", ".", ",", ":", "~", "==", " is ", " not ",
        " in ", " if ", " else ", "{% endfor %}", "'", "\"", "\\", "\n", "loop", "ns", "1", "x", "{% for x in messages %}",
        "{% raw %}", "é", "\xff",
    };
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "hi", "role", "assistant", "content", "yo");
    Random r = { 77 };
    for (int round = 0; round < 3000; round++) {
        Error err = { 0 };
        char below[100], *text;
        size_t n;
        Buf out, damaged;
        snprintf(below, sizeof below, "tests/data/text/templates/%s.jinja", files[round % COUNT(files)]);
        assert_int_equal(file_read(source_tree(below), 1 << 20, &text, &n, &err), OK);
        buf_init(&out, 1 << 24);
        buf_init(&damaged, 1 << 20);
        size_t at = 0;
        for (int k = random_below(&r, 4); k >= 0; k--) {
            size_t upto = at + (size_t)random_below(&r, (int32_t)(n - at) + 1);
            buf_append(&damaged, text + at, upto - at);
            if (random_below(&r, 2)) buf_text(&damaged, pieces[random_below(&r, COUNT(pieces))]);
            else upto += (size_t)random_below(&r, 12);
            at = upto < n ? upto : n;
        }
        buf_append(&damaged, text + at, n - at);
        Status status = render(damaged.data ? damaged.data : "", damaged.len, messages, &out, &err);
        assert_true(status == OK || (status == ERR_INPUT && err.text[0]));
        buf_free(&damaged);
        buf_free(&out);
        mem_free(text);
    }
    json_decref(messages);
}

static void starved(void **state)
{
    static const char source[] =
        "{% macro f(a, b=2) %}{{ a ~ b }}{% endmacro %}{% set ns = namespace(n=0) %}{% for m in messages %}"
        "{% set ns.n = ns.n + 1 %}{{ f(m.content | trim, m.role.split('e')) + 'x' + m.role }}{{ m | tojson }}"
        "{% endfor %}{{ {'a': [1, 2][::-1]} }}";
    Error err = { 0 };
    Status status;
    ChatTemplate *t = NULL;
    Buf out;
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", " hi ");
    buf_init(&out, 1 << 20);
    STARVE(status, status = chat_template_parse(&t, source, strlen(source), &err), {
        if (status != OK) assert_null(t);
        chat_template_close(status == OK ? NULL : t);
    });
    ChatInput in = { messages, NULL, NULL, false };
    STARVE(status, status = chat_template_render(t, &in, &out, &err), {
        if (status != OK) assert_int_equal(out.len, 0);
        buf_free(&out); /* a starved Buf has failed for good */
    });
    chat_template_close(t);
    buf_free(&out);
    json_decref(messages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deep_nesting), cmocka_unit_test(long_chains_work), cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(numbers_at_their_ends), cmocka_unit_test(deep_messages), cmocka_unit_test(output_must_fit),
        cmocka_unit_test(damaged_templates), cmocka_unit_test(starved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
