/* Rotary settings: read from config.json, and turned into frequencies (docs/spec/models.md 1.2 - 1.4).
 *
 * The frequencies follow the reference step by step in float32; only the power itself is taken in double and rounded
 * once, which is what a correctly rounded powf gives and does not depend on the C library. */
#include "models/config_impl.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

/* YaRN's two limits, in turns over the original context. */
static double beta_fast(const RopeConfig *p)
{
    return p->beta_fast > 0 ? p->beta_fast : 32;
}

static double beta_slow(const RopeConfig *p)
{
    return p->beta_slow > 0 ? p->beta_slow : 1;
}

/* --- reading -------------------------------------------------------------------------------------------------- */

static RopeType read_type(ConfigReader *r, const json_t *rope)
{
    static const struct {
        const char *name;
        RopeType    type;
    } kinds[] = { { "default", ROPE_DEFAULT }, { "mrope", ROPE_DEFAULT }, { "linear", ROPE_LINEAR },
                  { "llama3", ROPE_LLAMA3 },   { "yarn", ROPE_YARN } };
    const char *key = json_has(rope, "rope_type") ? "rope_type" : "type";
    const char *name = config_string(r, rope, key, "default");
    for (int i = 0; i < COUNT(kinds); i++) {
        if (strcmp(kinds[i].name, name) == 0) return kinds[i].type;
    }
    config_fail(r, ERR_UNSUPPORTED, "%s \"%.40s\" is not supported; default, linear, llama3 and yarn are", key, name);
    return ROPE_DEFAULT;
}

static void read_factor(ConfigReader *r, const json_t *rope, RopeConfig *p, int64_t max_position)
{
    if (!json_has(rope, "factor")) {
        /* YaRN alone may leave it out, when it says from where the context was stretched. */
        if (p->type == ROPE_YARN && p->original_max_position < max_position) {
            p->factor = (double)max_position / (double)p->original_max_position;
        } else {
            config_fail(r, ERR_INPUT, "factor is missing in the rope settings");
        }
        return;
    }
    p->factor = config_double(r, rope, "factor", 1, 1e6, 1);
}

static void read_scaling(ConfigReader *r, const json_t *rope, ModelConfig *c)
{
    static const char original[] = "original_max_position_embeddings";
    RopeConfig *p = &c->rope;
    const json_t *place = json_has(rope, original) ? rope : r->text;
    if (p->type == ROPE_LLAMA3 && !json_has(place, original)) config_fail(r, ERR_INPUT, "%s is missing", original);
    p->original_max_position = config_int(r, place, original, 1, INT32_MAX, c->max_position);
    read_factor(r, rope, p, c->max_position);

    if (p->type == ROPE_LLAMA3) {
        p->low_freq_factor = config_double(r, rope, "low_freq_factor", 1e-3, 1e6, 0);
        p->high_freq_factor = config_double(r, rope, "high_freq_factor", 1e-3, 1e6, 0);
        if (p->low_freq_factor == 0 || p->high_freq_factor <= p->low_freq_factor) {
            config_fail(r, ERR_INPUT, "llama3 rope needs low_freq_factor below high_freq_factor");
        }
    }
    if (p->type == ROPE_YARN) {
        p->beta_fast = config_double(r, rope, "beta_fast", 1e-3, 1e6, 0);
        p->beta_slow = config_double(r, rope, "beta_slow", 1e-3, 1e6, 0);
        p->attention_factor = config_double(r, rope, "attention_factor", 1e-3, 1e3, 0);
        p->mscale = config_double(r, rope, "mscale", 0, 1e3, 0);
        p->mscale_all_dim = config_double(r, rope, "mscale_all_dim", 0, 1e3, 0);
        p->truncate = config_bool(r, rope, "truncate", true);
        if (beta_fast(p) < beta_slow(p)) config_fail(r, ERR_INPUT, "yarn rope needs beta_slow below beta_fast");
    }
}

static void read_section(ConfigReader *r, const json_t *section, int32_t out[3])
{
    if (json_array_size(section) != 3) config_fail(r, ERR_INPUT, "mrope_section must have three numbers");
    for (size_t i = 0; i < 3; i++) {
        const json_t *item = json_array_get(section, i);
        json_int_t value = json_integer_value(item);
        bool good = json_is_integer(item) && value >= 0 && value <= 1024;
        if (!good) config_fail(r, ERR_INPUT, "mrope_section[%zu] must be an integer in [0, 1024]", i);
        out[i] = good ? (int32_t)value : 0;
    }
}

/* Which pairs the three coordinates turn: interleaved, so the last pair of H is 3 s - 2 and that of W is 3 s - 1. */
static void read_mrope(ConfigReader *r, const json_t *rope, ModelConfig *c)
{
    int32_t *s = c->rope.mrope_section, n_pairs = rope_dim(c) / 2;
    const json_t *section = config_array(r, rope, "mrope_section");
    if (!section && c->family != FAMILY_QWEN3_5) return;
    if (section) {
        read_section(r, section, s);
    } else {
        memcpy(s, (int32_t[3]){ 11, 11, 10 }, 3 * sizeof *s);
    }
    bool overlong = (s[1] > 0 && 3 * s[1] - 2 >= n_pairs) || (s[2] > 0 && 3 * s[2] - 1 >= n_pairs);
    if (s[0] + s[1] + s[2] != n_pairs || overlong) {
        config_fail(r, ERR_INPUT, "mrope_section [%d, %d, %d] does not divide the %d rotary pairs of head_dim %d", s[0],
                    s[1], s[2], n_pairs, c->head_dim);
    }
    if (!config_bool(r, rope, "mrope_interleaved", true)) {
        config_fail(r, ERR_UNSUPPORTED, "mrope_interleaved false is not supported");
    }
}

/* Files of transformers 5 have one object; older ones rope_theta and an object that says how it is scaled. */
void config_read_rope(ConfigReader *r, ModelConfig *c)
{
    RopeConfig *p = &c->rope;
    const json_t *rope = config_object(r, r->text, "rope_parameters");
    if (!rope) rope = config_object(r, r->text, "rope_scaling");

    const json_t *place = json_has(rope, "rope_theta") ? rope : r->text;
    bool may_lack = c->family == FAMILY_LLAMA; /* the first Llama 2 files do */
    if (!may_lack && !json_has(place, "rope_theta")) config_fail(r, ERR_INPUT, "rope_theta is missing");
    p->theta = config_double(r, place, "rope_theta", 1.5, 1e15, 10000);

    place = json_has(rope, "partial_rotary_factor") ? rope : r->text;
    p->partial_factor =
        config_double(r, place, "partial_rotary_factor", 1e-3, 1, c->family == FAMILY_QWEN3_5 ? 0.25 : 1);
    int dim = rope_dim(c);
    if (dim < 2 || dim % 2 != 0) {
        config_fail(r, ERR_INPUT, "head_dim %d and partial_rotary_factor give %d rotary dims; they must be even",
                    c->head_dim, dim);
    }
    p->type = read_type(r, rope);
    if (p->type != ROPE_DEFAULT) read_scaling(r, rope, c);
    read_mrope(r, rope, c);
}

/* --- frequencies ------------------------------------------------------------------------------------------------ */

int rope_dim(const ModelConfig *c)
{
    return (int)((double)c->head_dim * c->rope.partial_factor);
}

/* theta^(2i / dim) */
static float period(const ModelConfig *c, int i)
{
    float exponent = (float)(2 * i) / (float)rope_dim(c);
    return (float)pow((double)(float)c->rope.theta, (double)exponent);
}

/* Llama 3.1: long waves stretched, short ones kept, a blend between. */
static float llama3(const RopeConfig *p, float inv)
{
    float wave = (float)(2 * PI) / inv, factor = (float)p->factor;
    double original = (double)p->original_max_position;
    if (wave > (float)(original / p->low_freq_factor)) return inv / factor;
    if (wave < (float)(original / p->high_freq_factor)) return inv;
    float t = ((float)original / wave - (float)p->low_freq_factor) / (float)(p->high_freq_factor - p->low_freq_factor);
    return (1.0f - t) * inv / factor + t * inv;
}

typedef struct Ramp {
    float low, width; /* pairs below `low` are kept, from low + width on they are stretched */
} Ramp;

/* The pair (as a real number) that turns `turns` times over the original context. */
static double pair_of(const ModelConfig *c, double turns)
{
    const RopeConfig *p = &c->rope;
    return rope_dim(c) * log((double)p->original_max_position / (turns * 2 * PI)) / (2 * log(p->theta));
}

static Ramp yarn_ramp(const ModelConfig *c)
{
    const RopeConfig *p = &c->rope;
    double low = pair_of(c, beta_fast(p));
    double high = pair_of(c, beta_slow(p));
    if (p->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, rope_dim(c) - 1);
    if (low == high) high += 0.001;
    return (Ramp){ (float)low, (float)(high - low) };
}

static float yarn(const RopeConfig *p, Ramp ramp, float period_i, int i)
{
    float t = ((float)i - ramp.low) / ramp.width;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    float keep = 1.0f - t;
    float stretched = 1.0f / ((float)p->factor * period_i);
    return stretched * (1.0f - keep) + 1.0f / period_i * keep;
}

static double yarn_gain(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static float yarn_scale(const RopeConfig *p)
{
    if (p->attention_factor > 0) return (float)p->attention_factor;
    if (p->mscale > 0 && p->mscale_all_dim > 0) {
        return (float)(yarn_gain(p->factor, p->mscale) / yarn_gain(p->factor, p->mscale_all_dim));
    }
    return (float)yarn_gain(p->factor, 1);
}

static uint8_t axis_of(const int32_t section[3], int i)
{
    for (int axis = 1; axis <= 2; axis++) {
        if (i % 3 == axis && i < 3 * section[axis]) return (uint8_t)axis;
    }
    return 0;
}

void rope_frequencies(const ModelConfig *c, float *inv_freq, uint8_t *axis, float *scale)
{
    const RopeConfig *p = &c->rope;
    Ramp ramp = { 0 };
    if (p->type == ROPE_YARN) ramp = yarn_ramp(c);
    for (int i = 0; i < rope_dim(c) / 2; i++) {
        float period_i = period(c, i), inv = 1.0f / period_i;
        switch (p->type) {
        case ROPE_DEFAULT: break;
        case ROPE_LINEAR: inv /= (float)p->factor; break;
        case ROPE_LLAMA3: inv = llama3(p, inv); break;
        case ROPE_YARN: inv = yarn(p, ramp, period_i, i); break;
        }
        inv_freq[i] = inv;
        axis[i] = axis_of(p->mrope_section, i);
    }
    *scale = p->type == ROPE_YARN ? yarn_scale(p) : 1.0f;
}
