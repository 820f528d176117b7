/* Choosing tokens where the logits lie, with the bits of sampling/choose.c; and the k best ids of rows for drafters.
 *
 * A row is cut in splits of 4096 ids, a block each; what blocks find goes through memory to the next kernel, and no result
 * depends on which block came first. An id's place in the ranking (score descending, ties to the lower id) is one number of
 * 52 bits, so maxima, ties and cuts are those of integers:
 *
 *     look     edits of the rules, NaN and +inf, the best id
 *     couple   rank only: scores become score + weight * noise, and the best again
 *     narrow   x 5 digits of that number, for top-k, for top-p, for listed ids: a histogram of how many ids, or of how much
 *              mass, have each next digit; the kernel behind it goes on inside the one where the cut lies
 *     gather   the draw among what is left, sums of exponentials by pieces of 256, ids above the cut of the list
 *     finish   a row's results together, written to memory that the host sees
 *
 * Greedy rows are look and finish. Bound by launches for a few rows, by reading logits from L2 for many: 0.6 MB a row and
 * kernel at a vocabulary of 150,000. Masses are integers, sums run in the contract's order, so bits are the host's.
 *
 * Dropped: one block a row (6 us a reading, and same-address atomics of a histogram cost 100 us); 64-bit atomics in shared
 * memory (loops of compare and swap: masses are added in three limbs). */
#include "backend/cuda/cuda_impl.h"

#define inline __inline__ __device__
#include "backend/choose_math.h"
#undef inline

enum { THREADS = 256, SPLIT = 4096, PIECES = SPLIT / SUM_PIECE, MAX_WAVE = 64 };
enum { BLOCKS = 8, MAX_WIDE = 4, DIGITS = 2048, PASSES = 5, LIMBS = 3, LIMB_BITS = 14, OWN_DIGITS = DIGITS / THREADS };
static_assert(MAX_SAMPLED_VOCAB / SPLIT <= THREADS, "a block adds up the splits of a row");
static_assert((int64_t)MAX_WIDE * SPLIT << LIMB_BITS <= 1 << 28, "limbs do not overflow");
static_assert(PIECES * LANES == THREADS, "a thread is a lane of a piece");

/* ---- words: a place in the ranking ---- */

enum { ID_BITS = 20 };
#define ID_MASK 0xfffffu
#define BROKEN (~(uint64_t)0) /* a row with NaN or +inf; 0: nothing there */

static __device__ __forceinline__ uint64_t word_of(float score, int32_t id)
{
    return (uint64_t)score_key(score) << ID_BITS | (ID_MASK - (uint32_t)id);
}
static __device__ __forceinline__ int32_t id_of(uint64_t word)
{
    return (int32_t)(ID_MASK - (uint32_t)(word & ID_MASK));
}
static __device__ __forceinline__ float score_of(uint64_t word)
{
    uint32_t key = (uint32_t)(word >> ID_BITS);
    return f_of_bits(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}
static __device__ __forceinline__ int shift_of(int pass) /* digits of 11, 11, 10, 10, 10 bits */
{
    return pass < 2 ? 41 - 11 * pass : 40 - 10 * pass;
}

/* ---- what kernels share ---- */

enum { TOP_K, TOP_P, LIST, KINDS };

/* Where a cut stands: its leading digits, what still has to lie above it inside them. is_done: `prefix` is the whole word. */
struct Cut {
    uint64_t prefix, need, inside; /* inside: mass of all with these digits */
    int32_t  is_done;
};

struct Selection { /* of one kind; NULL: no row of the job wants it */
    Cut      *cut;  /* [rows][PASSES + 1] */
    uint64_t *mass; /* [rows][PASSES][DIGITS] */
};

struct ChooseArgs {
    float           *logits;
    int64_t          stride;
    int32_t          vocab, n_splits, n_pieces, list_size;
    const ChooseRow *rows;
    const ScoreEdit *edits;
    uint64_t        *looked, *coupled, *drawn; /* [rows][n_splits] */
    const uint64_t  *best;                     /* looked, or coupled */
    float           *sums;                     /* [rows][n_pieces] */
    Selection        select[KINDS];
    int32_t         *n_listed;                 /* [rows] */
    uint64_t        *list;                     /* [rows][list_size] */
    Choice          *chosen;
    Ranked          *ranked;
    int32_t         *ranked_id;
    float           *ranked_score;
};

struct Span { /* the ids of a block */
    int32_t first, end;
};
static __device__ __forceinline__ Span span_of(const ChooseArgs &a, int32_t n)
{
    int32_t first = blockIdx.x * SPLIT;
    return { first, min(first + SPLIT, n) };
}
static __device__ __forceinline__ float *row_of(const ChooseArgs &a, const ChooseRow &r)
{
    return a.logits + r.row * a.stride;
}

/* Calls see(id, score) for a thread's ids of a span; the loads of AHEAD go out together. */
enum { AHEAD = 8 };
template <typename See> static __device__ __forceinline__ void for_scores(const float *x, Span span, See see)
{
    for (int32_t first = span.first + threadIdx.x; first < span.end; first += AHEAD * THREADS) {
        float v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) v[i] = first + i * THREADS < span.end ? x[first + i * THREADS] : -F_INF;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i * THREADS < span.end) see(first + i * THREADS, v[i]);
    }
}

/* Largest of the threads' words, known to all. */
static __device__ uint64_t block_max(uint64_t mine)
{
    __shared__ uint64_t word[THREADS];
    __syncthreads();
    word[threadIdx.x] = mine;
    for (int w = THREADS / 2; w > 0; w /= 2) {
        __syncthreads();
        if (threadIdx.x < w && word[threadIdx.x + w] > word[threadIdx.x]) word[threadIdx.x] = word[threadIdx.x + w];
    }
    __syncthreads();
    return word[0];
}

static __device__ uint64_t splits_max(const ChooseArgs &a, const uint64_t *words)
{
    return block_max(threadIdx.x < a.n_splits ? words[(int64_t)blockIdx.y * a.n_splits + threadIdx.x] : 0);
}

/* A row's best id and score; false: the row is broken, or nothing is left of it. */
struct Best {
    int32_t id;
    float   score;
};
static __device__ bool find_best(const ChooseArgs &a, const ChooseRow &r, Best *out)
{
    uint64_t word = splits_max(a, a.best);
    if (word == BROKEN || word == 0) return false;
    out->id = id_of(word);
    out->score = row_of(a, r)[out->id];
    return true;
}

/* So small a temperature, or so large a score, that no noise could change the order, takes the best. */
static __device__ __forceinline__ bool is_drawn(const ChooseRow &r, const Best &best)
{
    return r.temperature > 0 && fabsf(best.score / r.temperature) < F_INF;
}
static __device__ __forceinline__ float weight_of(const ChooseRow &r, float score, float largest)
{
    return f_exp(score / r.temperature - largest / r.temperature);
}

/* ---- look ---- */

/* The edits of a block's ids. True: one of them was NaN or +inf before. */
static __device__ bool edit_span(const ChooseArgs &a, const ChooseRow &r, float *x, Span span)
{
    __shared__ float own[MAX_DEPTH];
    bool is_broken = false;
    ScoreEdit mine = {};
    bool has_own = threadIdx.x < r.n_own;
    if (has_own) mine = a.edits[r.first_own + threadIdx.x];
    has_own = has_own && mine.id >= span.first && mine.id < span.end;
    if (has_own) own[threadIdx.x] = x[mine.id];
    __syncthreads();
    for (int32_t i = threadIdx.x; i < r.n_edits; i += THREADS) {
        ScoreEdit e = a.edits[r.first_edit + i];
        if (e.id < span.first || e.id >= span.end) continue;
        is_broken = is_broken || !(x[e.id] < F_INF);
        x[e.id] = edited(x[e.id], e, r.penalties);
    }
    __syncthreads();
    if (has_own) {
        is_broken = is_broken || !(own[threadIdx.x] < F_INF);
        x[mine.id] = edited(own[threadIdx.x], mine, r.penalties);
    }
    __syncthreads();
    return is_broken;
}

static __global__ void __launch_bounds__(THREADS) look(const __grid_constant__ ChooseArgs a)
{
    begin_kernel();
    ChooseRow r = a.rows[blockIdx.y];
    Span span = span_of(a, a.vocab);
    float *x = row_of(a, r);
    uint64_t best = r.n_edits + r.n_own > 0 && edit_span(a, r, x, span) ? BROKEN : 0;
    for_scores(x, span, [&](int32_t id, float v) {
        uint64_t word = !(v < F_INF) ? BROKEN : id < r.n_valid && v > -F_INF ? word_of(v, id) : 0;
        best = word > best ? word : best;
    });
    best = block_max(best);
    if (threadIdx.x == 0) a.looked[(int64_t)blockIdx.y * a.n_splits + blockIdx.x] = best;
}

/* ---- noise ---- */

static __device__ __forceinline__ void words_of(const ChooseRow &r, int32_t first_id, uint32_t words[4])
{
    philox_block(r.index, r.choice, (uint32_t)first_id / 4, 0, (uint32_t)r.seed, (uint32_t)(r.seed >> 32), words);
}
static __device__ float noise_of(const ChooseRow &r, int32_t id)
{
    uint32_t words[4];
    words_of(r, id & ~3, words);
    return noise_of_word(words[id & 3]);
}

/* Ids out of reach of the best are left out, as in speculation/dflash_guess.c. */
static __global__ void __launch_bounds__(THREADS) couple(const __grid_constant__ ChooseArgs a)
{
    begin_kernel();
    ChooseRow r = a.rows[blockIdx.y];
    Span span = span_of(a, r.n_valid);
    float *x = row_of(a, r);
    uint64_t word = splits_max(a, a.looked); /* the score itself may be changed by its block already */
    float least = score_of(word) - RANK_REACH;
    bool is_usable = word != BROKEN && word != 0;
    if (is_usable) word = 0;
    for (int32_t first = span.first + 4 * threadIdx.x; is_usable && first < span.end; first += 4 * THREADS) {
        uint32_t words[4];
        if (r.coupling > 0) words_of(r, first, words);
        for (int32_t i = 0; i < 4 && first + i < span.end; i++) {
            float v = x[first + i];
            if (r.coupling > 0) x[first + i] = v = v >= least ? v + r.coupling * noise_of_word(words[i]) : -F_INF;
            uint64_t own = v > -F_INF ? word_of(v, first + i) : 0;
            word = own > word ? own : word;
        }
    }
    word = block_max(word);
    if (threadIdx.x == 0) a.coupled[(int64_t)blockIdx.y * a.n_splits + blockIdx.x] = word;
}

/* ---- cuts ---- */

static __device__ __forceinline__ int64_t wanted_ids(const ChooseRow &r, int kind)
{
    return kind == TOP_K ? r.top_k : r.n_listed;
}
static __device__ __forceinline__ bool is_wanted(const ChooseRow &r, int kind)
{
    if (kind == TOP_P) return r.temperature > 0 && r.top_p < 1;
    return wanted_ids(r, kind) > 0 && (kind == LIST || r.temperature > 0);
}

/* Goes one digit down inside `from` by its histogram: all threads call it, all get the result. */
static __device__ Cut next_cut(const ChooseRow &r, int kind, int pass, Cut from, const uint64_t *mass)
{
    __shared__ uint64_t sum[THREADS];
    __shared__ Cut found;
    uint64_t own[OWN_DIGITS], total = 0;
    int32_t highest = DIGITS - 1 - OWN_DIGITS * (int32_t)threadIdx.x; /* digits descend with threads */
    for (int i = 0; i < OWN_DIGITS; i++) total += own[i] = mass[highest - i];
    uint64_t above = total;
    __syncthreads();
    sum[threadIdx.x] = above;
    for (int w = 1; w < THREADS; w *= 2) {
        __syncthreads();
        uint64_t before = threadIdx.x >= w ? sum[threadIdx.x - w] : 0;
        __syncthreads();
        sum[threadIdx.x] = above += before;
    }
    __syncthreads();
    uint64_t all = sum[THREADS - 1];
    above -= total;
    if (pass == 0) from.need = kind == TOP_P ? mass_needed(r.top_p, all) : (uint64_t)wanted_ids(r, kind);
    if (pass == 0 && all <= from.need && threadIdx.x == 0) found = { 0, 0, 0, 1 }; /* all stay */
    if (pass == 0 && all <= from.need) above = from.need;
    for (int i = 0; i < OWN_DIGITS && above < from.need; i++) { /* one thread finds need in (above, above + own] */
        if (above + own[i] >= from.need) {
            uint64_t prefix = from.prefix << (pass < 2 ? 11 : 10) | (uint64_t)(highest - i), need = from.need - above;
            bool is_whole = need == own[i];
            found = { is_whole ? prefix << shift_of(pass) : prefix, need, own[i], is_whole || pass == PASSES - 1 };
            break;
        }
        above += own[i];
    }
    __syncthreads();
    Cut out = found;
    __syncthreads();
    return out;
}

/* The cut as far as `pass` histograms tell; block 0 keeps it for the kernels behind. */
static __device__ Cut cut_after(const ChooseArgs &a, const ChooseRow &r, int kind, int pass)
{
    Cut *cuts = a.select[kind].cut + (int64_t)blockIdx.y * (PASSES + 1);
    if (pass == 0) return { 0, 0, 0, 0 };
    Cut from = cuts[pass - 1];
    if (pass == 1) from = { 0, 0, 0, 0 };
    if (!from.is_done)
        from = next_cut(r, kind, pass - 1, from, a.select[kind].mass + ((int64_t)blockIdx.y * PASSES + pass - 1) * DIGITS);
    if (blockIdx.x == 0 && threadIdx.x == 0) cuts[pass] = from;
    return from;
}

/* The lowest word that a filter leaves, or the list takes. */
static __device__ uint64_t whole_cut(const ChooseArgs &a, const ChooseRow &r, int kind)
{
    return is_wanted(r, kind) ? cut_after(a, r, kind, PASSES).prefix : 0;
}

/* Adds the masses of a block's ids to the digits of `pass`. Many ids: a histogram of the block's own comes first. Few, because
 * a digit or a filter has left few: straight to the row's. */
struct Narrowing {
    const float *x;
    uint64_t     lowest, prefix; /* ids below are out already; digits known so far */
    int          kind, pass;
    float        largest;
    uint64_t    *mass; /* [DIGITS] of the row */
};

template <typename Add> static __device__ void for_masses(const ChooseRow &r, const Narrowing &n, Span span, Add add)
{
    int shift = shift_of(n.pass);
    uint32_t digit_mask = n.pass < 2 ? 2047 : 1023;
    for_scores(n.x, span, [&](int32_t id, float v) {
        uint64_t word = word_of(v, id);
        if (!(v > -F_INF) || word < n.lowest) return;
        if (n.pass > 0 && word >> shift_of(n.pass - 1) != n.prefix) return;
        add((uint32_t)(word >> shift) & digit_mask, n.kind == TOP_P ? mass_of(weight_of(r, v, n.largest)) : 1);
    });
}

static __device__ __forceinline__ void add_mass(uint64_t *to, uint64_t mass)
{
    if (mass) atomicAdd((unsigned long long *)to, (unsigned long long)mass);
}

static __device__ void narrow_many(const ChooseRow &r, const Narrowing &n, Span span)
{
    __shared__ uint32_t limb[LIMBS][DIGITS];
    int n_limbs = n.kind == TOP_P ? LIMBS : 1;
    for (int i = threadIdx.x; i < n_limbs * DIGITS; i += THREADS) limb[i / DIGITS][i % DIGITS] = 0;
    __syncthreads();
    for_masses(r, n, span, [&](uint32_t digit, uint64_t mass) {
        for (int l = 0; l < n_limbs; l++) {
            uint64_t part = mass >> l * LIMB_BITS;
            if (l < LIMBS - 1) part &= (1 << LIMB_BITS) - 1;
            if (part) atomicAdd(&limb[l][digit], (uint32_t)part);
        }
    });
    __syncthreads();
    for (int i = threadIdx.x; i < DIGITS; i += THREADS) {
        uint64_t sum = 0;
        for (int l = 0; l < n_limbs; l++) sum += (uint64_t)limb[l][i] << l * LIMB_BITS;
        add_mass(&n.mass[i], sum);
    }
}

/* `wide`: splits a block takes, so that many rows do not read each row's histogram too often. */
static __global__ void __launch_bounds__(THREADS) narrow(const __grid_constant__ ChooseArgs a, int kind, int pass, int wide)
{
    begin_kernel();
    ChooseRow r = a.rows[blockIdx.y];
    Best best;
    if (!is_wanted(r, kind)) return;
    Cut *cuts = a.select[kind].cut + (int64_t)blockIdx.y * (PASSES + 1);
    Cut before = pass > 1 ? cuts[pass - 1] : Cut{ 0, 0, 0, 0 };
    if (before.is_done) {
        if (blockIdx.x == 0 && threadIdx.x == 0) cuts[pass] = before;
        return;
    }
    if (!find_best(a, r, &best) || (kind != LIST && !is_drawn(r, best))) return;
    Cut cut = cut_after(a, r, kind, pass);
    if (cut.is_done) return;
    Narrowing n = { row_of(a, r), kind == TOP_P ? whole_cut(a, r, TOP_K) : 0, cut.prefix, kind, pass, best.score,
                    a.select[kind].mass + ((int64_t)blockIdx.y * PASSES + pass) * DIGITS };
    int32_t first = blockIdx.x * wide * SPLIT;
    Span span = { first, min(first + wide * SPLIT, r.n_valid) };
    bool is_many = kind == TOP_P ? n.lowest == 0 : pass == 0 || cut.inside > SPLIT;
    if (is_many) narrow_many(r, n, span);
    else for_masses(r, n, span, [&](uint32_t digit, uint64_t mass) { add_mass(&n.mass[digit], mass); });
}

/* ---- gather ---- */

/* exp(x - max) of a span, by pieces: a thread is a lane. */
static __device__ void sum_span(const ChooseArgs &a, const ChooseRow &r, const float *x, float max)
{
    __shared__ float lane[PIECES][LANES];
    int32_t piece = threadIdx.x / LANES, k = threadIdx.x % LANES, first = blockIdx.x * SPLIT + piece * SUM_PIECE;
    int32_t end = min(first + SUM_PIECE, r.n_valid);
    float sum = 0, v[SUM_PIECE / LANES];
#pragma unroll
    for (int i = 0; i < SUM_PIECE / LANES; i++) v[i] = first + k + i * LANES < end ? x[first + k + i * LANES] : -F_INF;
#pragma unroll
    for (int i = 0; i < SUM_PIECE / LANES; i++) sum += f_exp(v[i] - max); /* what is not there adds +0 */
    lane[piece][k] = sum;
    for (int w = LANES / 2; w > 0; w /= 2) {
        __syncthreads();
        if (k < w) lane[piece][k] += lane[piece][k + w];
    }
    __syncthreads();
    if (k == 0 && first < r.n_valid) a.sums[(int64_t)blockIdx.y * a.n_pieces + first / SUM_PIECE] = lane[piece][0];
}

/* The largest score / temperature + noise of a thread's ids. The best id, which no filter drops, begins: from its sum on
 * bounds of the noise tell of nearly all ids that they cannot win (sampling/choose.c). */
static __device__ uint64_t draw_span(const ChooseArgs &a, const ChooseRow &r, const float *x, const Best &best, uint64_t lowest)
{
    Span span = span_of(a, r.n_valid);
    float most = best.score / r.temperature + noise_of(r, best.id);
    uint64_t won = word_of(most, best.id);
    float scores[SPLIT / THREADS]; /* all loads go out together */
#pragma unroll
    for (int i = 0; i < SPLIT / THREADS; i++) {
        int32_t id = span.first + 4 * (int32_t)(threadIdx.x + i / 4 * THREADS) + i % 4;
        scores[i] = id < span.end ? x[id] : -F_INF;
    }
#pragma unroll
    for (int quad = 0; quad < SPLIT / THREADS / 4; quad++) {
        int32_t first = span.first + 4 * (int32_t)(threadIdx.x + quad * THREADS);
        float tempered[4];
        bool can_win = false;
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            float v = scores[4 * quad + i];
            bool stays = v > -F_INF && word_of(v, first + i) >= lowest;
            if (stays && r.min_p > 0) stays = weight_of(r, v, best.score) >= r.min_p;
            tempered[i] = stays ? v / r.temperature : -F_INF;
            can_win = can_win || tempered[i] + NOISE_MAX >= most;
        }
        if (!can_win) continue;
        uint32_t words[4];
        words_of(r, first, words);
        for (int32_t i = 0; i < 4; i++) {
            if (tempered[i] + noise_bound(words[i]) < most) continue;
            float sum = tempered[i] + noise_of_word(words[i]);
            uint64_t word = word_of(sum, first + i);
            if (word <= won) continue;
            won = word;
            most = sum;
        }
    }
    return won;
}

static __device__ void list_span(const ChooseArgs &a, const ChooseRow &r, const float *x, uint64_t lowest)
{
    for_scores(x, span_of(a, r.n_valid), [&](int32_t id, float v) {
        uint64_t word = word_of(v, id);
        if (!(v > -F_INF) || word < lowest) return;
        int32_t at = atomicAdd(&a.n_listed[blockIdx.y], 1); /* a cut leaves no more than were wanted */
        a.list[(int64_t)blockIdx.y * a.list_size + at] = word;
    });
}

static __global__ void __launch_bounds__(THREADS) gather(const __grid_constant__ ChooseArgs a)
{
    begin_kernel();
    ChooseRow r = a.rows[blockIdx.y];
    const float *x = row_of(a, r);
    Best best;
    if (!find_best(a, r, &best)) return;
    if (r.n_listed >= 0) sum_span(a, r, x, best.score);
    if (r.n_listed > 0) list_span(a, r, x, whole_cut(a, r, LIST));
    if (!is_drawn(r, best)) return;
    uint64_t top_k = whole_cut(a, r, TOP_K), top_p = whole_cut(a, r, TOP_P);
    uint64_t won = block_max(draw_span(a, r, x, best, top_k > top_p ? top_k : top_p));
    if (threadIdx.x == 0) a.drawn[(int64_t)blockIdx.y * a.n_splits + blockIdx.x] = won;
}

/* ---- finish ---- */

/* log of the sum of all pieces; thread 0 has it. */
static __device__ float log_sum_of(const ChooseArgs &a, const ChooseRow &r)
{
    __shared__ float lane[LANES];
    const float *sums = a.sums + (int64_t)blockIdx.y * a.n_pieces;
    int32_t n = (r.n_valid + SUM_PIECE - 1) / SUM_PIECE;
    if (threadIdx.x < LANES) {
        float sum = 0;
        for (int32_t i = threadIdx.x; i < n; i += LANES) sum += sums[i];
        lane[threadIdx.x] = sum;
    }
    for (int w = LANES / 2; w > 0; w /= 2) {
        __syncthreads();
        if (threadIdx.x < w) lane[threadIdx.x] += lane[threadIdx.x + w];
    }
    __syncthreads();
    return f_log(lane[0]);
}

/* Calls put(rank, id) for every listed word. */
template <typename Put> static __device__ void for_listed(const ChooseArgs &a, int32_t n, Put put)
{
    const uint64_t *list = a.list + (int64_t)blockIdx.y * a.list_size;
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        uint64_t word = list[i];
        int32_t rank = 0;
        for (int32_t j = 0; j < n; j++) rank += list[j] > word;
        put(rank, id_of(word));
    }
}

static __global__ void __launch_bounds__(THREADS) finish_choice(const __grid_constant__ ChooseArgs a)
{
    begin_kernel();
    ChooseRow r = a.rows[blockIdx.y];
    const float *x = row_of(a, r);
    Choice *out = &a.chosen[blockIdx.y];
    Best best;
    if (!find_best(a, r, &best)) {
        if (threadIdx.x == 0) {
            out->token = -1;
            out->is_finite = false;
        }
        return;
    }
    int32_t token = is_drawn(r, best) ? id_of(splits_max(a, a.drawn)) : best.id, n = r.n_listed > 0 ? a.n_listed[blockIdx.y] : 0;
    float log_sum = r.n_listed >= 0 ? log_sum_of(a, r) : 0;
    for_listed(a, n, [&](int32_t rank, int32_t id) {
        out->top_id[rank] = id;
        out->top_logprob[rank] = (x[id] - best.score) - log_sum;
    });
    if (threadIdx.x != 0) return;
    out->token = token;
    out->is_finite = true;
    out->logprob = r.n_listed >= 0 ? (x[token] - best.score) - log_sum : 0;
    out->n_top = n;
}

static __global__ void __launch_bounds__(THREADS) finish_ranks(const __grid_constant__ ChooseArgs a)
{
    begin_kernel();
    ChooseRow r = a.rows[blockIdx.y];
    const float *x = row_of(a, r);
    uint64_t word = splits_max(a, a.best);
    bool is_usable = word != BROKEN && word != 0;
    int32_t n = is_usable ? a.n_listed[blockIdx.y] : word == BROKEN ? -1 : 0;
    float log_sum = is_usable ? log_sum_of(a, r) : 0;
    for_listed(a, n, [&](int32_t rank, int32_t id) {
        a.ranked_id[(int64_t)blockIdx.y * a.list_size + rank] = id;
        a.ranked_score[(int64_t)blockIdx.y * a.list_size + rank] = x[id];
    });
    if (threadIdx.x == 0) a.ranked[blockIdx.y] = { n, log_sum };
}

/* ---- launching ---- */

/* What the rows of a job want between them. */
struct Wishes {
    bool draws, sums, couples, kind[KINDS];
};
static Wishes wishes_of(const ChooseRow *rows, int32_t n)
{
    Wishes w = {};
    for (int32_t i = 0; i < n; i++) {
        const ChooseRow *r = &rows[i];
        bool is_hot = r->temperature > 0;
        w.draws = w.draws || is_hot;
        w.sums = w.sums || r->n_listed >= 0;
        w.couples = w.couples || r->coupling > 0;
        w.kind[TOP_K] = w.kind[TOP_K] || (is_hot && r->top_k > 0);
        w.kind[TOP_P] = w.kind[TOP_P] || (is_hot && r->top_p < 1);
        w.kind[LIST] = w.kind[LIST] || r->n_listed > 0;
    }
    return w;
}

/* Takes pieces of 256 bytes one behind the other; without memory it only measures. */
struct Carver {
    char  *at;
    size_t used;
    template <typename T> void take(T **out, size_t n)
    {
        *out = at ? (T *)(at + used) : nullptr;
        used += (n * sizeof(T) + 255) / 256 * 256;
    }
};

/* Lays out what a wave needs; what must be zero comes first. Returns its bytes. */
static size_t lay_out(ChooseArgs *a, const Wishes &w, int32_t n_rows, char *memory, size_t *zeroed)
{
    Carver c = { memory, 0 };
    for (int k = 0; k < KINDS; k++)
        if (w.kind[k]) c.take(&a->select[k].mass, (size_t)n_rows * PASSES * DIGITS);
    c.take(&a->n_listed, n_rows);
    *zeroed = c.used;
    for (int k = 0; k < KINDS; k++)
        if (w.kind[k]) c.take(&a->select[k].cut, (size_t)n_rows * (PASSES + 1));
    c.take(&a->looked, (size_t)n_rows * a->n_splits);
    c.take(&a->coupled, (size_t)n_rows * a->n_splits);
    c.take(&a->drawn, (size_t)n_rows * a->n_splits);
    c.take(&a->sums, (size_t)n_rows * a->n_pieces);
    c.take(&a->list, (size_t)n_rows * a->list_size);
    return c.used;
}

/* Memory of its own: scratch may be known to recorded passes. */
static char *choose_memory(Device *d, size_t bytes)
{
    if (bytes <= d->choose_bytes) return d->choose_memory;
    CUDA_MUST(cudaStreamSynchronize(d->stream));
    if (d->choose_memory) CUDA_MUST(cudaFree(d->choose_memory));
    d->choose_bytes = bytes + bytes / 2;
    CUDA_MUST(cudaMalloc(&d->choose_memory, d->choose_bytes));
    return d->choose_memory;
}

static void run_wave(Device *d, ChooseArgs a, const Wishes &w, int32_t n_rows)
{
    size_t zeroed;
    char *memory = choose_memory(d, lay_out(&a, w, n_rows, nullptr, &zeroed));
    lay_out(&a, w, n_rows, memory, &zeroed);
    if (w.kind[TOP_K] || w.kind[TOP_P] || w.kind[LIST]) CUDA_MUST(cudaMemsetAsync(memory, 0, zeroed, d->stream));

    int wide = a.n_splits * n_rows / (BLOCKS * d->n_sm) + 1;
    wide = wide < MAX_WIDE ? wide : MAX_WIDE;
    dim3 grid(a.n_splits, n_rows), narrow_grid((a.n_splits + wide - 1) / wide, n_rows);
    a.best = a.looked;
    launch(d, look, grid, THREADS, 0, a);
    if (a.ranked && w.couples) {
        launch(d, couple, grid, THREADS, 0, a);
        a.best = a.coupled;
    }
    for (int kind = 0; kind < KINDS; kind++)
        for (int pass = 0; w.kind[kind] && pass < PASSES; pass++) launch(d, narrow, narrow_grid, THREADS, 0, a, kind, pass, wide);
    if (w.draws || w.sums) launch(d, gather, grid, THREADS, 0, a);
    launch(d, a.ranked ? finish_ranks : finish_choice, dim3(1, n_rows), THREADS, 0, a);
}

static void run_job(Device *d, const ChooseJob *job, ChooseArgs a)
{
    a.logits = (float *)job->logits.data;
    a.stride = job->logits.stride[0];
    a.vocab = (int32_t)job->logits.shape[1];
    a.n_splits = (a.vocab + SPLIT - 1) / SPLIT;
    a.n_pieces = (a.vocab + SUM_PIECE - 1) / SUM_PIECE;
    MUST(a.vocab <= MAX_SAMPLED_VOCAB && !is_recording(d));
    if (job->n_rows <= 0) return;
    const ChooseRow *rows = input_of(d, job->rows, job->n_rows);
    a.edits = input_of(d, job->edits, job->n_edits);
    for (int32_t first = 0; first < job->n_rows; first += MAX_WAVE) {
        int32_t n = job->n_rows - first < MAX_WAVE ? job->n_rows - first : MAX_WAVE;
        a.rows = rows + first;
        run_wave(d, a, wishes_of(job->rows + first, n), n);
        if (a.chosen) a.chosen += n;
        if (!a.ranked) continue;
        a.ranked += n;
        a.ranked_id += (int64_t)n * a.list_size;
        a.ranked_score += (int64_t)n * a.list_size;
    }
}

static void choose(Stream *st, const ChooseJob *job)
{
    ChooseArgs a = {};
    a.chosen = job->chosen;
    a.list_size = MAX_TOP_LOGPROBS;
    run_job(device_of(st), job, a);
}

static void rank(Stream *st, const RankJob *job)
{
    ChooseArgs a = {};
    a.ranked = job->ranked;
    a.ranked_id = job->id;
    a.ranked_score = job->score;
    a.list_size = job->k;
    run_job(device_of(st), &job->rows, a);
}

void cuda_add_choose(Ops *ops)
{
    ops->choose = choose;
    ops->rank = rank;
}
