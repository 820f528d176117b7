/* See markdown.h. A byte goes through three steps in push(): does it go on with the held run (extends); if not, what do
 * the held bytes turn out to be (settle); and does it begin a run itself (begins_run). Only put() writes. */
#include "cli/markdown.h"

#include <string.h>

#define UNKNOWN "\xEF\xBF\xBD"

enum Place {
    LINE_START,  /* only blanks so far */
    IN_TEXT,
    IN_INFO,     /* behind an opening fence */
    IN_BLOCK,    /* in a code block, not at a line's start */
};

/* ---- writing ---- */

static bool style_equal(MarkdownStyle a, MarkdownStyle b)
{
    return a.is_bold == b.is_bold && a.is_italic == b.is_italic && a.is_code == b.is_code &&
           a.is_heading == b.is_heading && a.is_mark == b.is_mark;
}

static void change_style(Markdown *m, MarkdownStyle s, Buf *out)
{
    if (!m->has_colors || style_equal(s, m->shown)) return;
    buf_text(out, "\033[0");
    if (s.is_mark) buf_text(out, ";2"); /* dim and bold share their switch on many terminals: a mark is never bold */
    else if (s.is_bold || s.is_heading) buf_text(out, ";1");
    if (s.is_italic && !s.is_mark) buf_text(out, ";3");
    if (s.is_code) buf_text(out, ";36");
    else if (s.is_heading) buf_text(out, ";34");
    buf_text(out, "m");
    m->shown = s;
}

static void put_byte(unsigned char c, Buf *out)
{
    char shown[2] = { '^', (char)(c ^ 0x40) };
    if (c == '\r') return; /* of CR LF; alone it would write over the line */
    if ((c < ' ' && c != '\n' && c != '\t') || c == 0x7F) buf_append(out, shown, 2);
    else buf_append(out, &c, 1);
}

/* The byte after 0xC2: the first 32 characters that begin so are controls, too. */
static void put_after_c2(unsigned char c, Buf *out)
{
    char both[2] = { (char)0xC2, (char)c };
    if (c >= 0xA0 && c < 0xC0) buf_append(out, both, 2);
    else buf_text(out, UNKNOWN);
    if (c < 0x80) put_byte(c, out);
}

static void put(Markdown *m, unsigned char c, Buf *out)
{
    bool had_c2 = m->has_c2;
    m->has_c2 = c == 0xC2 && !had_c2;
    if (m->has_c2) return;
    change_style(m, c == '\n' ? (MarkdownStyle){ 0 } : m->style, out); /* no colour runs on beyond its line */
    if (had_c2) put_after_c2(c, out);
    else put_byte(c, out);
}

static void put_held(Markdown *m, bool is_mark, Buf *out)
{
    m->style.is_mark = is_mark;
    for (int i = 0; i < m->n_held; i++) put(m, m->held[i], out);
    m->style.is_mark = false;
    if (m->n_held) m->before = m->held[m->n_held - 1];
    m->n_held = 0;
}

/* ---- what the held bytes are, given the byte c behind them ('\n' at the end of the text) ---- */

static bool is_blank(unsigned char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_word(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static void toggle_stars(Markdown *m, bool on)
{
    if (m->n_held != 2) m->style.is_italic = on;
    if (m->n_held != 1) m->style.is_bold = on;
}

/* Stars close what is open unless a blank stands before them, and open unless a blank follows; one star inside a word
 * is a product, not emphasis. */
static void settle_stars(Markdown *m, unsigned char c, Buf *out)
{
    int n = m->n_held;
    bool is_open = (n == 2 || m->style.is_italic) && (n == 1 || m->style.is_bold);
    bool closes = is_open && !is_blank(m->before);
    bool opens = !is_open && !is_blank(c) && (n > 1 || !is_word(m->before));
    if (n > 3 || !(closes || opens)) {
        put_held(m, false, out);
        return;
    }
    bool bold = m->style.is_bold, italic = m->style.is_italic;
    toggle_stars(m, opens);
    MarkdownStyle inside = m->style;
    m->style.is_bold = bold;
    m->style.is_italic = italic;
    put_held(m, true, out);
    m->style = inside;
}

static void settle_code(Markdown *m, Buf *out)
{
    int n = m->n_held;
    bool closes = m->code_run == n, opens = m->code_run == 0;
    m->style.is_code = false;
    if (!closes && !opens) m->style.is_code = true;
    put_held(m, closes || opens, out);
    if (closes) m->code_run = 0;
    if (opens) {
        m->code_run = n;
        m->style.is_code = true;
    }
}

static void open_fence(Markdown *m, Buf *out)
{
    m->fence = m->held[0];
    m->fence_run = m->n_held;
    put_held(m, true, out);
    m->style.is_mark = true;
    m->place = IN_INFO;
}

static void close_fence(Markdown *m, Buf *out)
{
    m->fence = 0;
    m->style.is_code = false;
    put_held(m, true, out);
    m->place = IN_TEXT;
}

/* A run in a code block: its closing fence when it is long enough and nothing follows. */
static void settle_block(Markdown *m, unsigned char c, Buf *out)
{
    if (m->n_held >= m->fence_run && is_blank(c)) {
        close_fence(m, out);
        return;
    }
    put_held(m, false, out);
    m->place = IN_BLOCK;
}

static void settle_line_start(Markdown *m, unsigned char c, Buf *out)
{
    unsigned char first = m->held[0], last = m->held[m->n_held - 1];
    bool ends_well = c == ' ' || c == '\t';
    bool is_item = (m->n_held == 1 && strchr("-+*", first)) || last == '.' || last == ')';
    if ((first == '`' || first == '~') && m->n_held >= 3) {
        open_fence(m, out);
        return;
    }
    m->place = IN_TEXT;
    if (first == '#' && ends_well) {
        m->style.is_heading = true;
        put_held(m, true, out);
    } else if (is_item && ends_well) {
        m->style.is_heading = true;
        put_held(m, false, out);
        m->style.is_heading = false;
    } else if (first == '*') {
        settle_stars(m, c, out);
    } else if (first == '`') {
        settle_code(m, out);
    } else {
        put_held(m, false, out);
    }
}

static void settle(Markdown *m, unsigned char c, Buf *out)
{
    if (m->n_held == 0) return;
    if (m->fence) settle_block(m, c, out);
    else if (m->place == LINE_START) settle_line_start(m, c, out);
    else if (m->held[0] == '*') settle_stars(m, c, out);
    else settle_code(m, out);
}

/* ---- which bytes are held ---- */

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

/* Does c go on with the held run? A number of more than three digits is none of a list. */
static bool extends(const Markdown *m, unsigned char c)
{
    unsigned char first = m->held[0], last = m->held[m->n_held - 1];
    if (is_digit(first)) return is_digit(last) && (is_digit(c) ? m->n_held < 3 : c == '.' || c == ')');
    if (first == '#' && m->n_held == 6) return false;
    return c == first && first != '-' && first != '+' && m->n_held < MARKDOWN_MAX_HELD;
}

static bool begins_run(const Markdown *m, unsigned char c)
{
    if (m->fence) return m->place == LINE_START && c == m->fence;
    if (m->place == IN_INFO) return false;
    if (m->code_run) return c == '`';
    if (m->place == LINE_START && (is_digit(c) || (c && strchr("#-+~", c)))) return true;
    return c == '*' || c == '`';
}

/* ---- a byte ---- */

static void end_line(Markdown *m, Buf *out)
{
    put(m, '\n', out);
    m->style = (MarkdownStyle){ .is_code = m->fence != 0 };
    m->code_run = 0;
    m->place = LINE_START;
    m->is_escaped = false;
    m->before = '\n';
}

static void plain(Markdown *m, unsigned char c, Buf *out)
{
    bool is_quote = m->place == LINE_START && c == '>' && !m->fence;
    bool stays = m->place == LINE_START && (is_blank(c) || is_quote);
    bool is_mark = m->style.is_mark;
    m->style.is_mark |= is_quote;
    put(m, c, out);
    m->style.is_mark = is_mark;
    m->before = c;
    m->is_escaped = c == '\\' && !m->is_escaped && !m->fence && !m->code_run;
    if (m->place == LINE_START && !stays) m->place = m->fence ? IN_BLOCK : IN_TEXT;
}

static void push(Markdown *m, unsigned char c, Buf *out)
{
    if (m->n_held > 0 && extends(m, c)) {
        m->held[m->n_held++] = c;
        return;
    }
    settle(m, c, out);
    if (c == '\n') {
        end_line(m, out);
    } else if (!m->is_escaped && begins_run(m, c)) {
        m->held[m->n_held++] = c;
    } else {
        plain(m, c, out);
    }
}

void markdown_init(Markdown *m, bool has_colors)
{
    *m = (Markdown){ .has_colors = has_colors, .place = LINE_START, .before = '\n' };
}

void markdown_push(Markdown *m, const char *text, size_t n, Buf *out)
{
    for (size_t i = 0; i < n; i++) {
        if (m->has_colors) push(m, (unsigned char)text[i], out);
        else put(m, (unsigned char)text[i], out);
    }
}

void markdown_end(Markdown *m, Buf *out)
{
    settle(m, '\n', out);
    if (m->has_c2) buf_text(out, UNKNOWN);
    m->has_c2 = false;
    change_style(m, (MarkdownStyle){ 0 }, out);
}
