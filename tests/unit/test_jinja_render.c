/* Templates against Jinja2: every source of tests/data/text/jinja.json renders as there, or fails as there. */
#include "unit/text_fixture.h"

#include "text/chat_template.h"

#include <string.h>
#include <time.h>

/* Renders source in the context; NULL (and a sentence in err) when it fails. Owned text. */
static char *render(const char *source, size_t n, const json_t *context, Error *err)
{
    ChatTemplate *t;
    Buf out;
    buf_init(&out, 1 << 24);
    if (chat_template_parse(&t, source, n, err) != OK) return NULL;
    chat_template_set_token(t, "bos_token", "<s>");
    ChatInput in = { json_object_get(context, "messages"), json_object_get(context, "tools"),
                     json_object_get(context, "kwargs"),
                     json_is_true(json_object_get(context, "add_generation_prompt")) };
    Status status = chat_template_render(t, &in, &out, err);
    chat_template_close(t);
    char *text = status == OK ? mem_strndup(out.data ? out.data : "", out.len) : NULL;
    buf_free(&out);
    return text;
}

static void as_jinja2(void **state)
{
    json_t *fixture = fixture_read("tests/data/text/jinja.json"), *c;
    const json_t *context = json_object_get(fixture, "context");
    size_t i, wrong = 0;
    json_array_foreach(json_object_get(fixture, "cases"), i, c) {
        Error err = { 0 };
        const json_t *source = json_object_get(c, "source");
        const char *want = json_string_value(json_object_get(c, "expected"));
        char *got = render(json_string_value(source), json_string_length(source), context, &err);
        bool same = want && got ? strcmp(got, want) == 0 : !want && !got && err.status == ERR_INPUT && err.text[0];
        if (!same) {
            wrong++;
            print_error("%s\n   is   %s\n   want %s\n", json_string_value(source), got ? got : err.text,
                        want ? want : "an error");
        }
        mem_free(got);
    }
    assert_int_equal(wrong, 0);
    assert_true(i > 500);
    json_decref(fixture);
}

/* Python's words, and the line. */
static void errors_say_what_and_where(void **state)
{
    static const struct {
        const char *source, *says;
    } rows[] = {
        { "{{ x.y }}", "the chat template failed in line 1: 'x' is undefined" },
        { "a\n\n{{ {}.a.b }}", "in line 3: 'dict object' has no attribute 'a'" },
        { "{{ [1][4] + 1 }}", "list object has no element 4" },
        { "{{ 'a' + 1 }}", "can only concatenate str (not \"int\") to str" },
        { "{{ none | length }}", "object of type 'NoneType' has no len()" },
        { "{% for x in 5 %}{% endfor %}", "'int' object is not iterable" },
        { "{{ [].append(1) }}", "access to attribute 'append' of a list object is unsafe" },
        { "{{ raise_exception('no ' ~ 1) }}", "the chat template refuses this conversation: no 1" },
        { "{{ 1 | nonsense }}", "there is no filter named 'nonsense'" },
        { "{{ (1 }}", "cannot be parsed: unexpected '}' in line 1" },
        { "{% if 1 %}\n\n", "endif is missing in line 2" },
        { "{% extends 'a' %}", "the statement \"extends\" is not supported" },
        { "{% for i in [1] recursive %}{% endfor %}", "recursive loops are not supported" },
        { "{{ f(*a) }}", "* and ** in a call are not supported" },
        { "{{ 'x", "a string does not end" },
        { "\xff", "not valid UTF-8 at offset 0" },
        { "{% break %}", "break or continue outside a loop" },
    };
    json_t *context = json_pack("{s:[]}", "messages");
    for (int i = 0; i < COUNT(rows); i++) {
        Error err = { 0 };
        assert_null(render(rows[i].source, strlen(rows[i].source), context, &err));
        if (!strstr(err.text, rows[i].says)) fail_msg("%s: %s", rows[i].source, err.text);
    }
    json_decref(context);
}

static void the_date(void **state)
{
    char want[64];
    Error err = { 0 };
    json_t *context = json_pack("{s:[]}", "messages");
    time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(want, sizeof want, "%d %b", &tm);
    static const char source[] = "{{ strftime_now('%d %b') }}";
    char *got = render(source, strlen(source), context, &err);
    time_t later = time(NULL);
    struct tm tm_later;
    localtime_r(&later, &tm_later);
    if (tm.tm_mday == tm_later.tm_mday) assert_string_equal(got, want); /* not over midnight */
    mem_free(got);
    json_decref(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_jinja2), cmocka_unit_test(errors_say_what_and_where), cmocka_unit_test(the_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
