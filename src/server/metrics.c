/* GET /metrics: Prometheus text, written from one snapshot of the engine's counters. No lock in any hot path.
 *
 * What is told by drafting method has names of its own beside the totals (..._by_method_total): one name with and without a
 * label would make sum() count everything twice. */
#include "server/api.h"

#include <inttypes.h>
#include <stddef.h>

enum { MAX_METRICS_BYTES = 1 << 20 };

static void family(Buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP tandem_%s %s\n# TYPE tandem_%s %s\n", name, help, name, type);
}

static void metric(Buf *out, const char *name, const char *type, const char *help, uint64_t value)
{
    family(out, name, type, help);
    buf_printf(out, "tandem_%s %" PRIu64 "\n", name, value);
}

static void seconds(Buf *out, const char *name, const char *help, double ms)
{
    family(out, name, "counter", help);
    buf_printf(out, "tandem_%s %.6f\n", name, ms / 1e3);
}

static void engine_metrics(Buf *out, const EngineStats *e)
{
    metric(out, "requests_running", "gauge", "Sequences that hold a slot of the engine", (uint64_t)e->running);
    metric(out, "requests_waiting", "gauge", "Requests that wait for a slot", (uint64_t)e->waiting);
    metric(out, "kv_blocks_used", "gauge", "Cache blocks in use", (uint64_t)e->blocks_used);
    metric(out, "kv_blocks", "gauge", "Cache blocks there are", (uint64_t)e->blocks_total);
    metric(out, "steps_total", "counter", "Passes over the model", e->steps);
    metric(out, "prompt_tokens_total", "counter", "Prompt tokens computed", e->prompt_tokens);
    metric(out, "output_tokens_total", "counter", "Tokens emitted", e->output_tokens);
    metric(out, "draft_tokens_total", "counter", "Drafted tokens that were verified", e->draft_tokens);
    metric(out, "accepted_tokens_total", "counter", "Drafted tokens that were accepted", e->accepted_tokens);
    metric(out, "failed_drafts_total", "counter", "Drafts thrown away because the drafter failed or proposed nonsense", e->failed_drafts);
    seconds(out, "draft_seconds_total", "Time of all steps in drafters", e->draft_ms);
    seconds(out, "forward_seconds_total", "Time of all steps in passes over the model", e->forward_ms);
    seconds(out, "choose_seconds_total", "Time of all steps in choosing, committing and telling drafters", e->choose_ms);
    metric(out, "preemptions_total", "counter", "Running requests whose blocks were taken back", e->preemptions);
    metric(out, "requests_done_total", "counter", "Requests that ended, well or not", e->requests_done);
    metric(out, "requests_failed_total", "counter", "Requests that ended with an error", e->requests_failed);
}

/* ---- by drafting method ---- */

static const struct {
    const char *name, *help;
    size_t      offset; /* in MethodStats, 8 bytes */
} by_method[] = {
    { "draft_rounds_total", "Verify passes of a sequence that held drafts", offsetof(MethodStats, counts.rounds) },
    { "draft_tokens_by_method_total", "Drafted tokens that were verified", offsetof(MethodStats, counts.draft_tokens) },
    { "accepted_tokens_by_method_total", "Drafted tokens that were accepted", offsetof(MethodStats, counts.accepted_tokens) },
    { "failed_drafts_by_method_total", "Drafts thrown away because the drafter failed or proposed nonsense", offsetof(MethodStats, failed_drafts) },
};

static const struct {
    const char *name, *help;
    size_t      offset; /* in DraftCounts, int32_t [MAX_DEPTH] */
} by_depth[] = {
    { "draft_depth_reached_total", "Rounds whose drafts went at least so deep", offsetof(DraftCounts, reached) },
    { "draft_depth_accepted_total", "Rounds that were accepted at least so deep", offsetof(DraftCounts, accepted) },
};

static void method_counters(Buf *out, const EngineStats *e, int which)
{
    family(out, by_method[which].name, "counter", by_method[which].help);
    for (int m = 0; m < e->n_methods; m++) {
        uint64_t value;
        memcpy(&value, (const char *)&e->methods[m] + by_method[which].offset, sizeof value);
        buf_printf(out, "tandem_%s{method=\"%s\"} %" PRIu64 "\n", by_method[which].name, e->methods[m].name, value);
    }
}

static void depth_counters(Buf *out, const EngineStats *e, int which)
{
    family(out, by_depth[which].name, "counter", by_depth[which].help);
    for (int m = 0; m < e->n_methods; m++) {
        const DraftCounts *c = &e->methods[m].counts;
        const int32_t *values = (const int32_t *)((const char *)c + by_depth[which].offset);
        for (int d = 1; d < MAX_DEPTH && c->reached[d] > 0; d++) {
            buf_printf(out, "tandem_%s{method=\"%s\",depth=\"%d\"} %d\n", by_depth[which].name, e->methods[m].name, d, values[d]);
        }
    }
}

/* The value of a label: three characters are escaped, and what is no UTF-8 (a sentence may be cut anywhere) is replaced. */
static void label_text(Buf *out, const char *text)
{
    for (size_t left = strlen(text), n, bad; left > 0; text += n, left -= n) {
        n = utf8_length(text, left, &bad);
        if (n == 0) {
            buf_text(out, "\xef\xbf\xbd");
            n = bad;
        } else if (*text == '\n') {
            buf_text(out, "\\n");
        } else {
            if (*text == '"' || *text == '\\') buf_text(out, "\\");
            buf_append(out, text, n);
        }
    }
}

static void method_gauges(Buf *out, const EngineStats *e)
{
    family(out, "drafter_off", "gauge", "1: the method is switched off until the next start, for this reason");
    for (int m = 0; m < e->n_methods; m++) {
        const MethodStats *s = &e->methods[m];
        buf_printf(out, "tandem_drafter_off{method=\"%s\"", s->name);
        if (s->off[0]) {
            buf_text(out, ",reason=\"");
            label_text(out, s->off);
            buf_text(out, "\"");
        }
        buf_printf(out, "} %d\n", s->off[0] != 0);
    }
    family(out, "drafter_suspect", "gauge", "1: guesses so badly that its file may belong to another model");
    for (int m = 0; m < e->n_methods; m++) {
        buf_printf(out, "tandem_drafter_suspect{method=\"%s\"} %d\n", e->methods[m].name, e->methods[m].is_suspect);
    }
}

static void draft_metrics(Buf *out, const EngineStats *e)
{
    if (e->n_methods == 0) return;
    for (int i = 0; i < COUNT(by_method); i++) method_counters(out, e, i);
    for (int i = 0; i < COUNT(by_depth); i++) depth_counters(out, e, i);
    method_gauges(out, e);
}

/* ---- the front ---- */

static void http_metrics(Server *s, Buf *out)
{
    metric(out, "http_connections", "gauge", "Open connections", (uint64_t)http_n_connections(s->http));
    metric(out, "http_requests_live", "gauge", "Requests on front workers", (uint64_t)http_n_exchanges(s->http));
    family(out, "http_answers_total", "counter", "Answers by class of their HTTP code");
    for (int i = 2; i < COUNT(s->n_answers); i++) {
        buf_printf(out, "tandem_http_answers_total{code=\"%dxx\"} %llu\n", i, atomic_load(&s->n_answers[i]));
    }
}

void api_metrics_answer(Server *s, HttpRequest *r)
{
    Buf out;
    EngineStats e = engine_stats(s->stack.engine);
    buf_init(&out, MAX_METRICS_BYTES);
    engine_metrics(&out, &e);
    draft_metrics(&out, &e);
    http_metrics(s, &out);
    atomic_fetch_add(&s->n_answers[2], 1);
    http_answer(r, out.failed ? 503 : 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.failed ? 0 : out.len);
    buf_free(&out);
}
