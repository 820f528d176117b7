/* Markdown on a terminal: which bytes get which colours, that nothing else changes, and that pieces do not matter. */
#include "cli/markdown.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK "\033[0;2m"
#define BOLD "\033[0;1m"
#define ITAL "\033[0;3m"
#define CODE "\033[0;36m"
#define HEAD "\033[0;1;34m"
#define HMRK "\033[0;2;34m" /* the hashes of a heading */
#define OFF  "\033[0m"

static void render(Buf *out, const char *text, size_t n, size_t cut, bool has_colors)
{
    Markdown m;
    buf_clear(out);
    markdown_init(&m, has_colors);
    markdown_push(&m, text, cut, out);
    markdown_push(&m, text + cut, n - cut, out);
    markdown_end(&m, out);
}

static void expect(const char *text, const char *want)
{
    Buf out;
    buf_init(&out, SIZE_MAX);
    render(&out, text, strlen(text), 0, true);
    if (strcmp(out.data ? out.data : "", want) != 0) {
        for (char *p = out.data; *p; p++)
            if (*p == '\033') *p = '$';
        fail_msg("%s\nbecame\n%s", text, out.data);
    }
    buf_free(&out);
}

static void test_headings(void **state)
{
    expect("# One\ntwo", HMRK "#" HEAD " One" OFF "\ntwo");
    expect("###### Six", HMRK "######" HEAD " Six" OFF);
    expect("####### seven", "####### seven");
    expect("#include", "#include");
    expect("a # b", "a # b");
}

static void test_emphasis(void **state)
{
    expect("a **b** c", "a " MARK "**" BOLD "b" MARK "**" OFF " c");
    expect("*i* **b**", MARK "*" ITAL "i" MARK "*" OFF " " MARK "**" BOLD "b" MARK "**" OFF);
    expect("***x***", MARK "***" "\033[0;1;3m" "x" MARK "***" OFF);
    expect("2 * 3 ** 4", "2 * 3 ** 4");
    expect("2*3*4", "2*3*4");
    expect("\\*not\\*", "\\*not\\*");
    expect("这是**重点**了", "这是" MARK "**" BOLD "重点" MARK "**" OFF "了");
    expect("**open\nnext", MARK "**" BOLD "open" OFF "\nnext");
    expect("snake_case_name", "snake_case_name");
}

static void test_code_spans(void **state)
{
    expect("a `b*c*` d", "a " MARK "`" CODE "b*c*" MARK "`" OFF " d");
    expect("``a ` b`` c", MARK "``" CODE "a ` b" MARK "``" OFF " c");
    expect("`open\nnext", MARK "`" CODE "open" OFF "\nnext");
}

static void test_code_blocks(void **state)
{
    expect("```c\nint *a; # x\n```\nb", MARK "```c" OFF "\n" CODE "int *a; # x" OFF "\n" MARK "```" OFF "\nb");
    expect("~~~\n```\n~~~", MARK "~~~" OFF "\n" CODE "```" OFF "\n" MARK "~~~" OFF);
    expect("````\n```\n````", MARK "````" OFF "\n" CODE "```" OFF "\n" MARK "````" OFF);
    expect("  ```\n  x\n  ```\ny", "  " MARK "```" OFF "\n" CODE "  x" OFF "\n" CODE "  " MARK "```" OFF "\ny");
    expect("```\n\nx", MARK "```" OFF "\n\n" CODE "x" OFF);
}

static void test_lists_and_quotes(void **state)
{
    expect("- a\n* b\n+ c", HEAD "-" OFF " a\n" HEAD "*" OFF " b\n" HEAD "+" OFF " c");
    expect("  1. x\n12) y", "  " HEAD "1." OFF " x\n" HEAD "12)" OFF " y");
    expect("1990. x", "1990. x");
    expect("3.14 -x --- 1", "3.14 -x --- 1");
    expect("-x\n---", "-x\n---");
    expect("> - q", MARK ">" OFF " " HEAD "-" OFF " q");
    expect("* **b**: c", HEAD "*" OFF " " MARK "**" BOLD "b" MARK "**" OFF ": c");
}

static void test_controls_are_shown(void **state)
{
    expect("a\033]52;c;x\a b\x7f", "a^[]52;c;x^G b^?");
    expect("a\r\nb\tc", "a\nb\tc");
    expect("\xC2\x9B" "2J \xC2\xA7", "\xEF\xBF\xBD" "2J \xC2\xA7"); /* CSI as one character; a paragraph sign */
    Buf out;
    buf_init(&out, SIZE_MAX);
    render(&out, "**a**\033[2J", 9, 3, false);
    assert_string_equal(out.data, "**a**^[[2J");
    buf_free(&out);
}

/* What can be said at once is said at once: after each byte at most a run of marks is missing. */
static void test_what_is_held_back(void **state)
{
    static const char text[] = "# A heading\n\nSome *text* with `code` and 12. numbers\n\n100. x\n"
                               "```py\nprint('`')\n```\nend.";
    Markdown m;
    Buf out;
    size_t n_shown = 0;
    buf_init(&out, SIZE_MAX);
    markdown_init(&m, true);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        buf_clear(&out);
        markdown_push(&m, text + i, 1, &out);
        for (size_t k = 0; k < out.len; k++) {
            if (out.data[k] != '\033') n_shown++;
            else k += strcspn(out.data + k, "m");
        }
        assert_true(i + 1 - n_shown <= 4);
        if (strchr("adegxpy\n", text[i])) assert_int_equal(n_shown, i + 1);
    }
    buf_free(&out);
}

static void strip(Buf *b)
{
    size_t kept = 0;
    for (size_t i = 0; i < b->len; i++) {
        if (b->data[i] == '\033') i += strcspn(b->data + i, "m");
        else b->data[kept++] = b->data[i];
    }
    b->len = kept;
}

/* Texts of the marks and little else: without the colours they are what they were, in however many pieces. */
static void test_pieces_and_bytes(void **state)
{
    static const char *const words[] = { "*",  "**",  "`",  "```", "~~~", "\n", "\n", " ", "#", "- ",
                                         "1. ", "> ", "\\", "a",   "é",   "语", "§",  "_", "12" };
    uint64_t seed = 20261130;
    Buf text, whole, cut;
    buf_init(&text, SIZE_MAX);
    buf_init(&whole, SIZE_MAX);
    buf_init(&cut, SIZE_MAX);
    for (int round = 0; round < 3000; round++) {
        buf_clear(&text);
        for (int i = 0; i < 24; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            buf_text(&text, words[(seed >> 33) % COUNT(words)]);
        }
        render(&whole, text.data, text.len, 0, true);
        for (size_t at = 1; at <= text.len; at++) {
            render(&cut, text.data, text.len, at, true);
            if (cut.len != whole.len || memcmp(cut.data, whole.data, cut.len) != 0)
                fail_msg("seed 20261130, round %d, cut at %zu: %s", round, at, text.data);
        }
        strip(&whole);
        assert_int_equal(whole.len, text.len);
        assert_memory_equal(whole.data, text.data, text.len);
    }
    buf_free(&text);
    buf_free(&whole);
    buf_free(&cut);
}

static void test_a_byte_at_a_time(void **state)
{
    static const char text[] = "# T\n\n1. **b** `c` *i*\n- x\n\n```py\n# no heading **x**\n```\n> q\n";
    Markdown m;
    Buf whole, bytes;
    buf_init(&whole, SIZE_MAX);
    buf_init(&bytes, SIZE_MAX);
    render(&whole, text, sizeof text - 1, 0, true);
    markdown_init(&m, true);
    for (size_t i = 0; i < sizeof text - 1; i++) markdown_push(&m, text + i, 1, &bytes);
    markdown_end(&m, &bytes);
    assert_string_equal(bytes.data, whole.data);
    buf_free(&whole);
    buf_free(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headings),
        cmocka_unit_test(test_emphasis),
        cmocka_unit_test(test_code_spans),
        cmocka_unit_test(test_code_blocks),
        cmocka_unit_test(test_lists_and_quotes),
        cmocka_unit_test(test_controls_are_shown),
        cmocka_unit_test(test_what_is_held_back),
        cmocka_unit_test(test_pieces_and_bytes),
        cmocka_unit_test(test_a_byte_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
