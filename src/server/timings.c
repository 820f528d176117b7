/* See timings.h. */
#include "server/timings.h"

#include <inttypes.h>

static void add_counts(DraftCounts *sum, const DraftCounts *c)
{
    sum->rounds += c->rounds;
    sum->draft_tokens += c->draft_tokens;
    sum->accepted_tokens += c->accepted_tokens;
    for (int d = 0; d < MAX_DEPTH; d++) {
        sum->reached[d] += c->reached[d];
        sum->accepted[d] += c->accepted[d];
    }
}

void timings_add(RequestTimings *sum, const RequestTimings *t)
{
    sum->queue_ms += t->queue_ms;
    sum->prefill_ms += t->prefill_ms;
    sum->decode_ms += t->decode_ms;
    sum->steps += t->steps;
    sum->draft_tokens += t->draft_tokens;
    sum->accepted_tokens += t->accepted_tokens;
    for (int m = 0; m < MAX_METHODS; m++) add_counts(&sum->drafts[m], &t->drafts[m]);
}

static void write_counts(const DraftCounts *c, Buf *out)
{
    buf_printf(out, "{\"rounds\":%" PRId64 ",\"draft_tokens\":%" PRId64 ",\"accepted_tokens\":%" PRId64 ",\"acceptance_by_depth\":[",
               c->rounds, c->draft_tokens, c->accepted_tokens);
    for (int d = 1; d < MAX_DEPTH && c->reached[d] > 0; d++) {
        buf_printf(out, "%s%.4f", d > 1 ? "," : "", (double)c->accepted[d] / (double)c->reached[d]);
    }
    buf_text(out, "]}");
}

void timings_write_methods(const RequestTimings *t, const Engine *e, Buf *out)
{
    int32_t n;
    const DraftMethod *methods = engine_methods(e, &n);
    bool is_first = true;
    buf_text(out, "{");
    for (int32_t m = 0; m < n; m++) {
        if (t->drafts[m].rounds == 0) continue;
        buf_printf(out, "%s\"%s\":", is_first ? "" : ",", methods[m].name);
        write_counts(&t->drafts[m], out);
        is_first = false;
    }
    buf_text(out, "}");
}

void timings_write(const RequestTimings *t, int64_t n_later, const Engine *e, Buf *out)
{
    double rate = t->decode_ms > 0 ? (double)n_later * 1e3 / t->decode_ms : 0;
    buf_printf(out, "{\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f,\"tokens_per_second\":%.2f", t->queue_ms, t->prefill_ms,
               t->decode_ms, rate);
    buf_printf(out, ",\"steps\":%" PRId64 ",\"draft_tokens\":%" PRId64 ",\"accepted_tokens\":%" PRId64 ",\"methods\":", t->steps,
               t->draft_tokens, t->accepted_tokens);
    timings_write_methods(t, e, out);
    buf_text(out, "}");
}
