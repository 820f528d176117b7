/* What DFlash 2 adds: docs/spec/speculation.md 1.11.
 *
 * A convolution along the rows of the block before and behind every sublayer, by which a row learns what its
 * neighbours guess; and a selector, which picks among the likeliest tokens of each row one that goes well with the
 * token before it. The weights of both convolutions of a sublayer are projected from its normed input, before either
 * has run. */
#include "models/dflash_impl.h"

/* ---- opening ---- */

static void declare_conv(Dflash *n, DflashConv *conv, const char *base, const char *projection)
{
    const DflashConfig *c = &n->config;
    const int64_t hidden = c->base.hidden_size, n_groups = hidden / c->conv_group;
    weights_array(&n->decoder.weights, &conv->base, 2, c->conv_kernel, hidden, base);
    weights_matrix(&n->decoder.weights, &conv->projection, 2 * c->conv_kernel * n_groups, hidden, projection);
}

void dflash2_declare_layer(Dflash *n, DflashLayer *layer)
{
    declare_conv(n, &layer->attention_conv, "attention_conv.base_kernel", "attention_conv.kernel_projection.weight");
    declare_conv(n, &layer->mlp_conv, "mlp_conv.base_kernel", "mlp_conv.kernel_projection.weight");
}

void dflash2_declare_selector(Dflash *n)
{
    const DflashConfig *c = &n->config;
    WeightList *list = &n->decoder.weights;
    weights_matrix(list, &n->predecessor, c->base.vocab_size, c->selector_rank,
                   "candidate_selector.predecessor_codebook");
    weights_matrix(list, &n->successor, c->base.vocab_size, c->selector_rank, "candidate_selector.successor_codebook");
    weights_matrix(list, &n->hidden_projection, c->selector_rank, c->base.hidden_size,
                   "candidate_selector.hidden_projection.weight");
}

/* ---- running ---- */

/* Dynamic weights of one side: half of each row. */
static Tensor dynamic_of(const Dflash *n, int side)
{
    const Tensor d = tensor_rows(n->scratch.dynamic, n->n_rows);
    return tensor_cols(d, side * (d.shape[1] / 2), d.shape[1] / 2);
}

static const float *base_of(const Dflash *n, const DflashConv *conv, int side)
{
    return conv->base + (int64_t)side * n->config.conv_kernel * n->config.base.hidden_size;
}

void dflash2_enter(Dflash *n, Stream *st, const DflashConv *conv, const float *norm, Tensor out)
{
    const Ops *op = n->decoder.model.ops;
    const Tensor z = tensor_rows(n->scratch.normed, n->n_rows), z_act = tensor_rows(n->scratch.normed_act, n->n_rows);
    op->rms_norm(st, z, tensor_rows(n->scratch.hidden, n->n_rows), norm, n->config.base.rms_norm_eps);
    op->round_rows(st, z_act, z);
    op->linear(st, z_act, &(LinearJob){ tensor_rows(n->scratch.dynamic, n->n_rows), &conv->projection }, 1);
    op->block_conv(st, out, z, base_of(n, conv, 0), dynamic_of(n, 0), n->config.conv_kernel, n->block_size);
}

Tensor dflash2_leave(Dflash *n, Stream *st, const DflashConv *conv)
{
    const Tensor out = tensor_rows(n->scratch.mixed, n->n_rows), x = tensor_rows(n->scratch.delta, n->n_rows);
    n->decoder.model.ops->block_conv(st, out, x, base_of(n, conv, 1), dynamic_of(n, 1), n->config.conv_kernel,
                                     n->block_size);
    return out;
}

void dflash_pick(Dflash *n, Stream *st, PickJob *job)
{
    const Ops *op = n->decoder.model.ops;
    int32_t n_rows = 0;
    for (int32_t i = 0; i < job->n_lines; i++)
        if (job->lines[i].first + job->lines[i].n_rows > n_rows) n_rows = job->lines[i].first + job->lines[i].n_rows;
    job->edge = tensor_rows(n->scratch.edge, n_rows);
    job->predecessor = &n->predecessor;
    job->successor = &n->successor;
    op->linear(st, tensor_rows(n->scratch.picked_act, n_rows), &(LinearJob){ job->edge, &n->hidden_projection }, 1);
    op->pick(st, job);
}
