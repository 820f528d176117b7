/* See line.h. libedit draws and edits; what it cannot do is done in three places here:
 *   read_char     characters: our own UTF-8 decoder (libedit's follows the locale), and a wait that signals can end.
 *                 Signals are blocked except while waiting, so that none is lost between looking and sleeping.
 *   paste         what stands between the marks that a terminal puts around a pasted text
 *   remember      history goes to a file of our own, entry by entry
 * The terminal is left as it was found: by line_read() when it returns, by on_end() when a signal ends the process. */
#include "cli/line.h"

#include "base/memory.h"
#include "cli/line_history.h"
#include "cli/terminal.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <termios.h>
#include <wchar.h>

enum { MAX_LINE_BYTES = 64 << 20, UNKNOWN_CHAR = 0xFFFD };

struct LineReader {
    EditLine   *edit;        /* NULL: not a terminal */
    HistoryW   *history;
    char        history_path[4096];
    wchar_t     prompt[64];
    sigset_t    waiting_mask; /* while waiting for a key */
    unsigned char bytes[4096]; /* read and not yet decoded */
    size_t      n_bytes, at;
};

/* ---- signals while a line is read ---- */

static const int ending_signals[] = { SIGTERM, SIGHUP, SIGQUIT }, reading_signals[] = { SIGINT, SIGWINCH, SIGTSTP };
static struct termios terminal_before;
static pthread_t reader;
static volatile sig_atomic_t was_interrupted, was_resized, was_suspended;

#define PASTE_ON  "\033[?2004h"
#define PASTE_OFF "\033[?2004l"

static void on_end(int signal_number)
{
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
    ssize_t unused = write(STDOUT_FILENO, PASTE_OFF "\n", sizeof PASTE_OFF);
    (void)unused;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* The system gives a signal to any thread; only the one that waits for a key is woken by it. */
static void on_reading(int signal_number)
{
    int old = errno;
    if (!pthread_equal(pthread_self(), reader)) pthread_kill(reader, signal_number);
    else if (signal_number == SIGINT) was_interrupted = 1;
    else if (signal_number == SIGWINCH) was_resized = 1;
    else was_suspended = 1;
    errno = old;
}

typedef struct OldSignals {
    struct sigaction end[COUNT(ending_signals)], reading[COUNT(reading_signals)];
    sigset_t         mask;
} OldSignals;

static void catch_all(const int *signals, int n, void (*handler)(int), struct sigaction *old)
{
    struct sigaction action = { .sa_handler = handler };
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < n; i++) sigaction(signals[i], &action, &old[i]);
}

static void catch_signals(LineReader *l, OldSignals *old)
{
    sigset_t ours;
    reader = pthread_self();
    was_interrupted = was_resized = was_suspended = 0;
    sigemptyset(&ours);
    for (int i = 0; i < COUNT(reading_signals); i++) sigaddset(&ours, reading_signals[i]);
    pthread_sigmask(SIG_BLOCK, &ours, &old->mask);
    l->waiting_mask = old->mask;
    catch_all(ending_signals, COUNT(ending_signals), on_end, old->end);
    catch_all(reading_signals, COUNT(reading_signals), on_reading, old->reading);
}

static void restore_signals(const OldSignals *old)
{
    for (int i = 0; i < COUNT(ending_signals); i++) sigaction(ending_signals[i], &old->end[i], NULL);
    for (int i = 0; i < COUNT(reading_signals); i++) sigaction(reading_signals[i], &old->reading[i], NULL);
    pthread_sigmask(SIG_SETMASK, &old->mask, NULL);
}

static void set_paste_marks(bool on)
{
    fputs(on ? PASTE_ON : PASTE_OFF, stdout);
    fflush(stdout);
}

/* Ctrl-Z: the shell gets its terminal, and the line comes back with `fg`. */
static void suspend(LineReader *l)
{
    was_suspended = 0;
    set_paste_marks(false);
    el_wset(l->edit, EL_PREP_TERM, 0);
    raise(SIGSTOP);
    el_wset(l->edit, EL_PREP_TERM, 1);
    set_paste_marks(true);
    el_wset(l->edit, EL_REFRESH);
}

/* ---- characters ---- */

/* Waits for more bytes. 1: they are there; 0: the end; -1: Ctrl-C. */
static int fill(LineReader *l)
{
    for (;;) {
        struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
        int ready = ppoll(&p, 1, NULL, &l->waiting_mask);
        if (was_resized) {
            was_resized = 0;
            el_resize(l->edit);
        }
        if (was_suspended) suspend(l);
        if (was_interrupted) return -1;
        if (ready < 0 && errno != EINTR) return 0;
        if (ready <= 0) continue;
        ssize_t n = read(STDIN_FILENO, l->bytes + l->n_bytes, sizeof l->bytes - l->n_bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) return 0;
        l->n_bytes += (size_t)n;
        return 1;
    }
}

static bool take_byte(LineReader *l, unsigned char *c, int *result)
{
    if (l->at == l->n_bytes) {
        l->at = l->n_bytes = 0;
        *result = fill(l);
        if (*result <= 0) return false;
    }
    *c = l->bytes[l->at++];
    return true;
}

/* EL_GETCFN. A sequence that is no character becomes U+FFFD; a byte that does not continue one begins the next. */
static int read_char(EditLine *edit, wchar_t *out)
{
    LineReader *l = NULL;
    unsigned char text[4];
    int result = 0;
    size_t bad = 1, n = 1, length;
    el_wget(edit, EL_CLIENTDATA, &l);
    if (!take_byte(l, &text[0], &result)) return result;
    while (!(length = utf8_length(text, n, &bad)) && bad == n && n < 4 && text[0] >= 0xC2 && text[0] <= 0xF4) {
        if (!take_byte(l, &text[n], &result)) return result;
        n++;
    }
    if (length == 0) {
        l->at -= n - bad; /* at most the byte read last: it did not belong to it */
        *out = UNKNOWN_CHAR;
        return 1;
    }
    static const unsigned char first_bits[] = { 0, 0x7F, 0x1F, 0x0F, 0x07 };
    wchar_t c = text[0] & first_bits[length];
    for (size_t i = 1; i < length; i++) c = (c << 6) | (text[i] & 0x3F);
    *out = c;
    return 1;
}

static void put_char(wchar_t c, Buf *out)
{
    uint32_t u = (uint32_t)c;
    unsigned char b[4];
    size_t n = 0;
    if (u < 0x80) b[n++] = (unsigned char)u;
    else if (u < 0x800) b[n++] = (unsigned char)(0xC0 | u >> 6);
    else if (u < 0x10000) b[n++] = (unsigned char)(0xE0 | u >> 12);
    else b[n++] = (unsigned char)(0xF0 | u >> 18);
    if (u >= 0x10000) b[n++] = (unsigned char)(0x80 | (u >> 12 & 0x3F));
    if (u >= 0x800) b[n++] = (unsigned char)(0x80 | (u >> 6 & 0x3F));
    if (u >= 0x80) b[n++] = (unsigned char)(0x80 | (u & 0x3F));
    buf_append(out, b, n);
}

/* ---- keys of our own ---- */

static bool ends_with(const wchar_t *text, size_t n, const wchar_t *end)
{
    size_t m = wcslen(end);
    return n >= m && !wmemcmp(text + n - m, end, m);
}

/* A terminal sends line breaks as CR. Other control characters have no business in a prompt. */
static size_t clean_paste(wchar_t *text, size_t n)
{
    size_t kept = 0;
    wchar_t before = 0;
    for (size_t i = 0; i < n; i++) {
        wchar_t c = text[i];
        bool is_break = c == '\r' || (c == '\n' && before != '\r');
        before = c;
        if (is_break) text[kept++] = '\n';
        else if ((c >= ' ' && c != 0x7F) || c == '\t') text[kept++] = c;
    }
    return kept;
}

static unsigned char paste(EditLine *edit, int key)
{
    static const wchar_t end[] = L"\033[201~";
    Buf text;
    wchar_t c;
    buf_init(&text, MAX_LINE_BYTES);
    while (el_wgetc(edit, &c) == 1) {
        buf_append(&text, &c, sizeof c);
        if (ends_with((wchar_t *)(void *)text.data, text.len / sizeof c, end)) {
            text.len -= wcslen(end) * sizeof c;
            break;
        }
    }
    size_t n = text.failed ? 0 : clean_paste((wchar_t *)(void *)text.data, text.len / sizeof c);
    c = 0;
    text.len = n * sizeof c;
    buf_append(&text, &c, sizeof c);
    int inserted = n ? el_winsertstr(edit, (wchar_t *)(void *)text.data) : 0;
    buf_free(&text);
    return inserted ? CC_ERROR : CC_REFRESH;
}

static unsigned char break_line(EditLine *edit, int key)
{
    return el_winsertstr(edit, L"\n") ? CC_ERROR : CC_REFRESH;
}

static wchar_t *prompt_of(EditLine *edit)
{
    LineReader *l = NULL;
    el_wget(edit, EL_CLIENTDATA, &l);
    return l->prompt;
}

static void bind_keys(EditLine *e)
{
    el_wset(e, EL_EDITOR, L"emacs");
    el_wset(e, EL_ADDFN, L"tandem-paste", L"insert a pasted text as it is", paste);
    el_wset(e, EL_ADDFN, L"tandem-break-line", L"insert a line break", break_line);
    el_wset(e, EL_BIND, L"\\e[200~", L"tandem-paste", NULL);
    el_wset(e, EL_BIND, L"\\e^M", L"tandem-break-line", NULL);
    el_wset(e, EL_BIND, L"\\e^J", L"tandem-break-line", NULL);
    el_source(e, NULL); /* ~/.editrc */
}

/* ---- history ---- */

static void recall(void *ctx, const char *text)
{
    HistEventW event;
    LineReader *l = ctx;
    size_t n = strlen(text) + 1;
    wchar_t *wide = mem_alloc_array(n, sizeof *wide);
    if (wide && mbstowcs(wide, text, n) != (size_t)-1) history_w(l->history, &event, H_ENTER, wide);
    mem_free(wide);
}

static void open_history(LineReader *l)
{
    HistEventW event;
    l->history = history_winit();
    if (!l->history) return;
    history_w(l->history, &event, H_SETSIZE, HISTORY_MAX_ENTRIES);
    history_w(l->history, &event, H_SETUNIQUE, 1);
    el_wset(l->edit, EL_HIST, history_w, l->history);
    if (l->history_path[0]) history_load(l->history_path, recall, l);
}

static void remember(LineReader *l, const wchar_t *wide, const char *text)
{
    HistEventW event;
    if (!l->history || history_w(l->history, &event, H_ENTER, wide) <= 0) return; /* 0: the same as the last one */
    if (l->history_path[0]) history_append(l->history_path, text);
}

/* ---- the face ---- */

/* libedit writes characters by the locale's rules. */
static void use_utf8(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

Status line_open(LineReader **out, const char *history, Error *err)
{
    *out = NULL;
    LineReader *l = mem_alloc(sizeof *l);
    if (!l) return error_set(err, ERR_NOMEM, "no memory for the line editor");
    *out = l;
    if (!isatty(STDIN_FILENO) || !terminal_moves(STDOUT_FILENO)) return OK;
    use_utf8();
    tcgetattr(STDIN_FILENO, &terminal_before);
    l->edit = el_init("tandem", stdin, stdout, stderr);
    if (!l->edit) return OK; /* plain lines will do */
    if (history) snprintf(l->history_path, sizeof l->history_path, "%s", history);
    el_wset(l->edit, EL_CLIENTDATA, l);
    el_wset(l->edit, EL_SIGNAL, 0);
    el_wset(l->edit, EL_GETCFN, read_char);
    el_wset(l->edit, EL_PROMPT, prompt_of);
    el_wset(l->edit, EL_SETTY, L"-d", L"-icrnl", L"-inlcr", NULL); /* else a pasted CR LF would be two breaks */
    bind_keys(l->edit);
    open_history(l);
    return OK;
}

void line_close(LineReader *l)
{
    if (!l) return;
    if (l->edit) el_end(l->edit);
    if (l->history) history_wend(l->history);
    mem_free(l);
}

static LineEvent read_edited(LineReader *l, Buf *out)
{
    OldSignals old;
    int n = 0;
    catch_signals(l, &old);
    el_wset(l->edit, EL_PREP_TERM, 1); /* before the prompt invites to type: libedit itself does it after */
    set_paste_marks(true);
    const wchar_t *line = el_wgets(l->edit, &n);
    set_paste_marks(false);
    restore_signals(&old);
    if (was_interrupted) { /* libedit keeps what was typed where el_wline() shows it */
        const LineInfoW *typed = el_wline(l->edit);
        for (const wchar_t *c = typed->buffer; c < typed->lastchar; c++) put_char(*c, out);
        return LINE_INTERRUPT;
    }
    if (!line || n <= 0) return LINE_END;
    if (line[n - 1] == '\n') n--;
    for (int i = 0; i < n; i++) put_char(line[i], out);
    if (n > 0) remember(l, line, out->data);
    return LINE_TEXT;
}

/* Nothing is drawn here, so Ctrl-Z and the size of the window are nobody's business. */
static LineEvent read_plain(const char *prompt, Buf *out)
{
    int c;
    struct sigaction old;
    static const int interrupt = SIGINT;
    reader = pthread_self();
    was_interrupted = 0;
    if (isatty(STDIN_FILENO)) fputs(prompt, isatty(STDOUT_FILENO) ? stdout : stderr);
    fflush(stdout);
    catch_all(&interrupt, 1, on_reading, &old);
    while ((c = getc(stdin)) != EOF && c != '\n') {
        char byte = (char)c;
        if (byte) buf_append(out, &byte, 1);
    }
    sigaction(SIGINT, &old, NULL);
    clearerr(stdin);
    if (was_interrupted) return LINE_INTERRUPT;
    return c == EOF && out->len == 0 ? LINE_END : LINE_TEXT;
}

LineEvent line_read(LineReader *l, const char *prompt, Buf *out)
{
    buf_clear(out);
    buf_append(out, "", 0);
    for (size_t i = 0; i <= strlen(prompt) && i < COUNT(l->prompt) - 1; i++) l->prompt[i] = (unsigned char)prompt[i];
    return l->edit ? read_edited(l, out) : read_plain(prompt, out);
}
