/* GET /metrics: Prometheus text, written from one snapshot of the engine's counters. No lock in any hot path. */
#include "server/api.h"

#include <inttypes.h>

enum { MAX_METRICS_BYTES = 1 << 20 };

static void metric(Buf *out, const char *name, const char *type, const char *help, uint64_t value)
{
    buf_printf(out, "# HELP tandem_%s %s\n# TYPE tandem_%s %s\ntandem_%s %" PRIu64 "\n", name, help, name, type, name, value);
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
    metric(out, "preemptions_total", "counter", "Running requests whose blocks were taken back", e->preemptions);
    metric(out, "requests_done_total", "counter", "Requests that ended, well or not", e->requests_done);
    metric(out, "requests_failed_total", "counter", "Requests that ended with an error", e->requests_failed);
}

static void http_metrics(Server *s, Buf *out)
{
    metric(out, "http_connections", "gauge", "Open connections", (uint64_t)http_n_connections(s->http));
    metric(out, "http_requests_live", "gauge", "Requests on front workers", (uint64_t)http_n_exchanges(s->http));
    buf_text(out, "# HELP tandem_http_answers_total Answers by class of their HTTP code\n# TYPE tandem_http_answers_total counter\n");
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
    http_metrics(s, &out);
    atomic_fetch_add(&s->n_answers[2], 1);
    http_answer(r, out.failed ? 503 : 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.failed ? 0 : out.len);
    buf_free(&out);
}
