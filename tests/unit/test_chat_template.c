/* Whole conversations through whole templates, as Jinja2 renders them; where templates are found; arguments. */
#include "unit/text_fixture.h"

#include "text/chat_template.h"

#include <stdio.h>
#include <string.h>

static ChatTemplate *template_named(const char *name)
{
    Error err = { 0 };
    ChatTemplate *t;
    if (strcmp(name, "nano") == 0) {
        if (chat_template_open(&t, source_tree("models/nano"), &err) != OK) fail_msg("%s", err.text);
        return t;
    }
    char below[100], *text;
    size_t n;
    snprintf(below, sizeof below, "tests/data/text/templates/%s.jinja", name);
    assert_int_equal(file_read(source_tree(below), 1 << 20, &text, &n, &err), OK);
    if (chat_template_parse(&t, text, n, &err) != OK) fail_msg("%s", err.text);
    chat_template_set_token(t, "bos_token", "<s>");
    mem_free(text);
    return t;
}

static void check_case(const json_t *c)
{
    Error err = { 0 };
    Buf out;
    ChatTemplate *t = template_named(json_string_value(json_object_get(c, "template")));
    ChatInput in = { json_object_get(c, "messages"), json_object_get(c, "tools"), json_object_get(c, "kwargs"),
                     json_is_true(json_object_get(c, "add_generation_prompt")) };
    const char *want = json_string_value(json_object_get(c, "expected")),
               *raised = json_string_value(json_object_get(c, "raised"));
    buf_init(&out, 1 << 24);
    Status status = chat_template_render(t, &in, &out, &err);
    char *shown = json_dumps(c, 0);
    if (want && (status != OK || strcmp(out.data ? out.data : "", want) != 0))
        fail_msg("%s\n%s\n%s", shown, err.text, out.data);
    if (!want && (status != ERR_INPUT || (raised && !strstr(err.text, raised)))) fail_msg("%s\n%s", shown, err.text);
    mem_free(shown);
    buf_free(&out);
    chat_template_close(t);
}

static void as_jinja2(void **state)
{
    json_t *fixture = fixture_read("tests/data/text/chat.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(fixture, "cases"), i, c) check_case(c);
    assert_true(i > 150);
    json_decref(fixture);
}

/* nano's template gives the prompts that the reference traces were made with. */
static void prompts_of_the_traces(void **state)
{
    static const char head[] = "<|im_start|>user\n",
                      tail[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    json_t *traces = fixture_read("tests/data/golden/nano_traces.json"), *trace;
    ChatTemplate *t = template_named("nano");
    size_t i, checked = 0;
    json_array_foreach(json_object_get(traces, "plain"), i, trace) {
        const char *prompt = json_string_value(json_object_get(trace, "prompt"));
        size_t n = strlen(prompt) - strlen(head) - strlen(tail);
        if (strncmp(prompt, head, strlen(head)) != 0) continue; /* plain text to be continued */
        checked++;
        Error err = { 0 };
        Buf out;
        json_t *messages = json_pack("[{s:s,s:s%}]", "role", "user", "content", prompt + strlen(head), n);
        ChatInput in = { messages, NULL, NULL, true };
        buf_init(&out, 1 << 20);
        assert_int_equal(chat_template_render(t, &in, &out, &err), OK);
        assert_string_equal(out.data, prompt);
        buf_free(&out);
        json_decref(messages);
    }
    assert_true(checked >= 6);
    chat_template_close(t);
    json_decref(traces);
}

static void check_found(const char *config, const char *file, Status want_status, const char *want)
{
    Error err = { 0 };
    TempDir dir;
    ChatTemplate *t;
    temp_dir_open(&dir);
    if (config) temp_write(&dir, "tokenizer_config.json", config, strlen(config));
    if (file) temp_write(&dir, "chat_template.jinja", file, strlen(file));
    Status status = chat_template_open(&t, dir.path, &err);
    assert_int_equal(status, want_status);
    if (status == OK) {
        Buf out;
        ChatInput in = { NULL, NULL, NULL, false };
        buf_init(&out, 100);
        assert_int_equal(chat_template_render(t, &in, &out, &err), OK);
        assert_string_equal(out.data, want);
        buf_free(&out);
    } else {
        assert_null(t);
        assert_string_not_equal(err.text, "");
    }
    chat_template_close(t);
    temp_dir_close(&dir);
}

static void where_it_is_found(void **state)
{
    check_found("{\"chat_template\": \"config\"}", NULL, OK, "config");
    check_found("{\"chat_template\": \"config\"}", "file\n", OK, "file");
    check_found(NULL, "file", OK, "file");
    check_found(
        "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"r\"}, {\"name\": \"default\", \"template\": \"d\"}]}",
        NULL, OK, "d");
    check_found("{\"chat_template\": [{\"name\": \"rag\", \"template\": \"r\"}, 7]}", NULL, ERR_NOT_FOUND, NULL);
    check_found("{\"chat_template\": null}", NULL, ERR_NOT_FOUND, NULL);
    check_found("{}", NULL, ERR_NOT_FOUND, NULL);
    check_found(NULL, NULL, ERR_NOT_FOUND, NULL);
    check_found("{", NULL, ERR_INPUT, NULL);
    check_found(NULL, "{% if %}", ERR_INPUT, NULL);
    chat_template_close(NULL);
}

static void names_and_arguments(void **state)
{
    static const char source[] =
        "{{ bos_token }}|{{ eos_token }}|{{ x }}|{{ tools is none }}|{{ tools is defined }}|{{ y is defined }}"
        "|{{ add_generation_prompt }}|{{ documents is none }}";
    Error err = { 0 };
    ChatTemplate *t;
    Buf out;
    assert_int_equal(chat_template_parse(&t, source, strlen(source), &err), OK);
    chat_template_set_token(t, "bos_token", "<old>");
    chat_template_set_token(t, "bos_token", "<s>");
    chat_template_set_token(t, "eos_token", "</s>");
    json_t *messages = json_array(), *kwargs = json_pack("{s:i,s:s,s:i}", "x", 5, "eos_token", "mine", "unused", 1);
    ChatInput in = { messages, NULL, kwargs, true };
    buf_init(&out, 1000);
    buf_text(&out, "before ");
    assert_int_equal(chat_template_render(t, &in, &out, &err), OK);
    assert_string_equal(out.data, "before <s>|mine|5|True|True|False|True|True");
    static const char *const reserved[] = { "messages", "tools", "add_generation_prompt" };
    for (int i = 0; i < COUNT(reserved); i++) {
        json_t *bad = json_pack("{s:[]}", reserved[i]);
        in.kwargs = bad;
        error_clear(&err);
        assert_int_equal(chat_template_render(t, &in, &out, &err), ERR_INPUT);
        assert_string_equal(err.param, "chat_template_kwargs");
        assert_non_null(strstr(err.text, reserved[i]));
        json_decref(bad);
    }
    assert_string_equal(out.data, "before <s>|mine|5|True|True|False|True|True");
    buf_free(&out);
    json_decref(messages);
    json_decref(kwargs);
    chat_template_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_jinja2), cmocka_unit_test(prompts_of_the_traces), cmocka_unit_test(where_it_is_found),
        cmocka_unit_test(names_and_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
