/* Choosing along a path.
 *
 * Plain decode is the walk of a tree that is its anchor alone, so plain and drafted tokens come from the same lines
 * here. History of a row: prompt, output before the anchor, then the path, anchor first; a last prompt token is no output,
 * so the first token of an answer has no path. The place of the token chosen at depth d is n_ids + d. */
#include "engine/choosing.h"

void sequence_history(const Sequence *seq, const int32_t *path, int32_t n_path, History *out)
{
    int32_t n_output = seq->n_ids - seq->n_prompt;
    *out = (History){ .prompt = seq->ids, .n_prompt = seq->n_prompt, .output = seq->ids + seq->n_prompt };
    if (n_output == 0) { /* node 0 is the last prompt token */
        path++;
        n_path--;
    } else {
        out->n_output = n_output - 1;
    }
    if (n_path > 0) {
        out->path = path;
        out->n_path = n_path;
    }
}

void sequence_rule(const Sequence *seq, int32_t index, const EngineOptions *options, const History *history,
                   RowRule *out)
{
    const GenerateRequest *g = &seq->request->g;
    *out = (RowRule){ .forced = -1, .n_valid = options->n_valid, .params = &g->params, .history = history };
    if (!g->ignore_eos && index < seq->n_prompt + g->min_tokens) {
        out->banned = g->stop_ids;
        out->n_banned = g->n_stop_ids;
    }
}

typedef struct WalkCtx {
    Choosing *choosing;
    const Share *share;
} WalkCtx;

/* A certain share has one node to choose at, its last row; before it lie outputs only when the prompt is scored. */
static int32_t node_output(const Share *share, int32_t node)
{
    return share->first_output + (share->is_certain ? share->n_outputs - 1 : node);
}

/* The row of a node as choose() wants it: everything before it, its rule and place. */
typedef struct NodeRow {
    int32_t tokens[MAX_DEPTH], index, output;
    History history;
    RowRule rule;
    DrawKey key;
} NodeRow;

static void node_row(const Choosing *c, const Share *share, int32_t node, const int32_t *path, int32_t depth, NodeRow *out)
{
    const Sequence *seq = share->seq;
    for (int32_t i = 0; i <= depth; i++) out->tokens[i] = share->tree->token[path[i]];
    out->index = seq->n_ids + depth;
    out->output = node_output(share, node);
    out->key = (DrawKey){ seq->request->g.seed, (uint32_t)seq->choice };
    sequence_history(seq, out->tokens, depth + 1, &out->history);
    sequence_rule(seq, out->index, c->options, &out->history, &out->rule);
}

static void queue_nodes(Choosing *c, const Share *share)
{
    int32_t n = share->is_certain ? 1 : share->tree->n_nodes;
    for (int32_t node = 0; node < n; node++) {
        int32_t path[MAX_DEPTH];
        NodeRow row;
        tree_path(share->tree, node, path);
        node_row(c, share, node, path, share->tree->depth[node], &row);
        row_chooser_add(c->rows, row.output, &row.rule, row.key, (uint32_t)row.index);
    }
}

void choosing_queue(Choosing *c, Stream *st, const Share *shares, int32_t n, Tensor logits)
{
    row_chooser_begin(c->rows, logits);
    if (!row_chooser_is_device(c->rows)) return;
    for (int32_t i = 0; i < n; i++) {
        const Share *share = &shares[i];
        bool is_read = share->is_scored || c->options->hooks.row;
        for (int32_t k = 0; is_read && k < share->n_outputs; k++) row_chooser_read(c->rows, share->first_output + k);
        if (share->gives_token) queue_nodes(c, share);
    }
    row_chooser_queue(c->rows, st);
}

static void choose_at(void *ctx, int32_t node, const int32_t *path, int32_t depth, Choice *out)
{
    WalkCtx *w = ctx;
    NodeRow row;
    node_row(w->choosing, w->share, node, path, depth, &row);
    row_chooser_choose(w->choosing->rows, row.output, &row.rule, row.key, (uint32_t)row.index, out);
}

static FinishReason finish_after(const Sequence *seq, int32_t token, int32_t n_ids)
{
    if (sequence_stops_at(seq, token)) return FINISH_STOP;
    return n_ids >= seq->limit ? FINISH_LENGTH : FINISH_NONE;
}

static bool stop_at(void *ctx, int32_t token, int32_t depth)
{
    const Sequence *seq = ((WalkCtx *)ctx)->share->seq;
    return finish_after(seq, token, seq->n_ids + depth + 1) != FINISH_NONE;
}

static void logprob_of(const Choice *choice, TokenLogprob *out)
{
    out->logprob = choice->logprob;
    out->n_top = choice->n_top;
    memcpy(out->top_id, choice->top_id, sizeof out->top_id);
    memcpy(out->top_logprob, choice->top_logprob, sizeof out->top_logprob);
}

static void append(Choosing *c, Sequence *seq, const Choice *choice, int32_t output)
{
    Request *r = seq->request;
    const EngineHooks *hooks = &c->options->hooks;
    int32_t index = seq->n_ids, vocab = c->vocab_size;
    if (hooks->row)
        hooks->row(hooks->ctx, r->g.id, seq->choice, index, row_chooser_logits(c->rows, output), vocab, choice->token);
    if (seq->logprobs) logprob_of(choice, &seq->logprobs[index - seq->n_prompt]);
    seq->ids[seq->n_ids++] = choice->token;
    seq->ended = finish_after(seq, choice->token, seq->n_ids);
}

bool choose_tokens(Choosing *c, Share *share)
{
    Walk *walk = &c->walk;
    WalkCtx ctx = { c, share };
    verify_walk(share->tree, choose_at, stop_at, &ctx, walk);
    int32_t n_chosen = walk->n_path - walk->failed;
    for (int32_t i = 0; i < n_chosen; i++)
        append(c, share->seq, &walk->chosen[i], node_output(share, walk->path[i]));
    share->n_path = walk->n_path;
    for (int32_t i = 0; i < walk->n_path; i++) share->path_rows[i] = share->first_row + walk->path[i];
    return !walk->failed;
}

bool score_prompt(Choosing *c, const Share *share)
{
    const Sequence *seq = share->seq;
    Request *r = seq->request;
    for (int32_t i = 0; i < share->n_outputs; i++) {
        int32_t index = seq->n_committed + i + 1;
        if (index >= seq->n_prompt) break;
        const float *row = row_chooser_logits(c->rows, share->first_output + i);
        int32_t n_top = r->g.params.n_logprobs > 0 ? r->g.params.n_logprobs : 0;
        Choice given;
        if (!score_token(row, c->vocab_size, c->options->n_valid, seq->ids[index], n_top, &given)) return false;
        logprob_of(&given, &r->prompt_logprobs[index]);
    }
    return true;
}
