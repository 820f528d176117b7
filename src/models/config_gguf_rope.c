/* Llama 3's rotary scaling in a GGUF file. The file keeps only its result, what each frequency is divided by
 * (rope_freqs.weight), so the settings are found that give these numbers: the published ones have low_freq_factor 1,
 * high_freq_factor 4, and differ in factor and original context. Numbers that no such settings give are refused. */
#include "models/config_impl.h"
#include "tensor/gguf.h"

#include <math.h>

enum { MAX_PAIRS = 256, FIRST_CONTEXT = 32, LAST_CONTEXT = 1 << 20 };

typedef struct Factors {
    float by[MAX_PAIRS];
    int   n; /* 0: the file has none */
} Factors;

static Status read_factors(Factors *f, const Gguf *g, Error *err)
{
    const GgufTensor *t = gguf_find(g, "rope_freqs.weight");
    *f = (Factors){ 0 };
    if (!t) return OK;
    if (t->format != QUANT_F32 || t->n_dims != 1 || t->shape[0] > MAX_PAIRS)
        return error_set(err, ERR_UNSUPPORTED, "%s: tensor rope_freqs.weight is no short list of F32 numbers",
                         gguf_path(g));
    f->n = (int)t->shape[0];
    return gguf_read(g, t->part, t->offset, f->by, (size_t)t->bytes, err);
}

/* The settings of c give these factors, as exactly as two float32 formulas for them agree. */
static bool gives(const ModelConfig *c, const Factors *f)
{
    float plain[MAX_PAIRS], scaled[MAX_PAIRS], scale;
    uint8_t axis[MAX_PAIRS];
    ModelConfig unscaled = *c;
    unscaled.rope.type = ROPE_DEFAULT;
    rope_frequencies(&unscaled, plain, axis, &scale);
    rope_frequencies(c, scaled, axis, &scale);
    for (int i = 0; i < f->n; i++) {
        const double ratio = (double)plain[i] / (double)f->by[i] / (double)scaled[i];
        if (!(fabs(ratio - 1) < 1e-5)) return false;
    }
    return true;
}

/* The slowest frequencies are divided by the factor itself; the context is a power of two. */
static bool fit(ModelConfig *c, const Factors *f)
{
    RopeConfig *p = &c->rope;
    if (f->n != rope_dim(c) / 2 || p->type != ROPE_DEFAULT) return false;
    if (gives(c, f)) return true; /* all are 1 */
    p->type = ROPE_LLAMA3;
    p->low_freq_factor = 1;
    p->high_freq_factor = 4;
    p->factor = (double)f->by[f->n - 1];
    for (p->original_max_position = FIRST_CONTEXT; p->original_max_position <= LAST_CONTEXT; p->original_max_position *= 2)
        if (gives(c, f)) return true;
    return false;
}

Status config_fit_rope_factors(ModelConfig *c, const char *path, Error *err)
{
    Gguf *g;
    Factors f;
    Status s = gguf_open(&g, path, err);
    if (s) return s;
    s = read_factors(&f, g, err);
    if (!s && f.n && !fit(c, &f))
        s = error_set(err, ERR_UNSUPPORTED,
                      "%s: the factors in rope_freqs.weight are not llama3's, which alone are supported", path);
    gguf_close(g);
    return s;
}
