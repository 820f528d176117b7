/* Batches for kernel checks, see scene.h. */
#include "scene.h"

#include <string.h>

/* ---- shapes ---- */

static int32_t parent_in_shape(Check *c, TreeShape shape, int32_t i)
{
    if (i == 0) return -1;
    switch (shape) {
    case TREE_CHAIN: return i - 1;
    case TREE_STAR: return 0;
    case TREE_BINARY: return (i - 1) / 2;
    case TREE_BUSHY: return check_int(c, 0, i - 1);
    default: return check_int(c, i > 4 ? i - 4 : 0, i - 1);
    }
}

/* ---- blocks ---- */

static void shuffle(Check *c, int32_t *items, int32_t n)
{
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = check_int(c, 0, i), t = items[i];
        items[i] = items[j];
        items[j] = t;
    }
}

static int32_t *shuffled(Check *c, int32_t first, int32_t n)
{
    int32_t *items = check_alloc(c, (size_t)n * sizeof *items);
    for (int32_t i = 0; i < n; i++) items[i] = first + i;
    shuffle(c, items, n);
    return items;
}

static void open_blocks(Scene *s, Check *c, const SceneSeq *seqs, int n_seqs)
{
    s->max_blocks = 1;
    s->n_blocks = 2; /* the dump block, and one that nobody uses */
    for (int i = 0; i < n_seqs; i++) {
        int32_t n = (seqs[i].n_committed + seqs[i].n_rows + s->block_size - 1) / s->block_size;
        s->n_blocks += n;
        if (n + 1 > s->max_blocks) s->max_blocks = n + 1;
    }
    s->n_slots = n_seqs + 2;
    int32_t n_entries = s->n_slots * s->max_blocks, *free_blocks = shuffled(c, 1, s->n_blocks - 1), next = 0;
    int32_t *slots = shuffled(c, 0, s->n_slots);
    s->block_table = check_alloc(c, (size_t)n_entries * sizeof(int32_t));
    for (int32_t i = 0; i < n_entries; i++) s->block_table[i] = -100000000;
    for (int i = 0; i < n_seqs; i++) {
        int32_t n = (seqs[i].n_committed + seqs[i].n_rows + s->block_size - 1) / s->block_size;
        s->seqs[i].slot = slots[i];
        for (int32_t b = 0; b < n; b++) s->block_table[slots[i] * s->max_blocks + b] = free_blocks[next++];
    }
}

static int32_t entry_store(const Scene *s, int32_t slot, int32_t entry)
{
    return s->block_table[slot * s->max_blocks + entry / s->block_size] * s->block_size + entry % s->block_size;
}

/* ---- rows ---- */

static void add_row(Scene *s, int32_t seq, int32_t i, int32_t parent)
{
    const BatchSeq *q = &s->seqs[seq];
    int32_t row = q->first_row + i;
    s->seq[row] = seq;
    s->parent[row] = parent < 0 ? -1 : q->first_row + parent;
    s->index[row] = parent < 0 ? q->n_committed : s->index[q->first_row + parent] + 1;
    s->store[row] = entry_store(s, q->slot, q->n_committed + i);
    memset(s->path + row * MAX_DEPTH, 0xff, MAX_DEPTH * sizeof(int32_t));
    if (q->certain) return;
    int32_t depth = s->index[row] - q->n_committed;
    if (parent >= 0)
        memcpy(s->path + row * MAX_DEPTH, s->path + s->parent[row] * MAX_DEPTH, (size_t)depth * sizeof(int32_t));
    s->path[row * MAX_DEPTH + depth] = row;
}

static void add_seq(Scene *s, Check *c, int32_t seq, const SceneSeq *spec)
{
    BatchSeq *q = &s->seqs[seq];
    q->first_row = s->batch.n_rows;
    q->n_rows = spec->n_rows;
    q->n_committed = spec->n_committed;
    q->certain = spec->certain;
    q->phase = !spec->certain ? SEQ_VERIFY : spec->n_rows > 1 ? SEQ_PROMPT : SEQ_DECODE;
    for (int32_t i = 0; i < spec->n_rows; i++) {
        int32_t parent = spec->certain ? i - 1 : parent_in_shape(c, spec->shape, i);
        while (!spec->certain && parent >= 0 && s->index[q->first_row + parent] - q->n_committed >= MAX_DEPTH - 1)
            parent = s->parent[q->first_row + parent] < 0 ? 0 : s->parent[q->first_row + parent] - q->first_row;
        add_row(s, seq, i, parent);
    }
    s->batch.n_rows += spec->n_rows;
    if (!spec->certain) s->batch.n_uncertain_rows += spec->n_rows;
}

static void add_padding(Scene *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t row = s->batch.n_rows++;
        s->seq[row] = s->parent[row] = -1;
        s->index[row] = s->store[row] = 0;
        memset(s->path + row * MAX_DEPTH, 0xff, MAX_DEPTH * sizeof(int32_t));
    }
    if (n == 0) return;
    s->seqs[s->batch.n_seqs++] =
        (BatchSeq){ .phase = SEQ_PAD, .first_row = s->batch.n_rows - n, .n_rows = n, .slot = -1000000 };
    s->seqs[s->batch.n_seqs++] = (BatchSeq){ .phase = SEQ_PAD, .first_row = 1000000, .slot = -1000000 };
}

void scene_open(Scene *s, Check *c, const SceneSeq *seqs, int n_seqs, int32_t block_size, int32_t n_padding)
{
    int32_t n_rows = n_padding;
    *s = (Scene){ .block_size = block_size };
    for (int i = 0; i < n_seqs; i++) n_rows += seqs[i].n_rows;
    open_blocks(s, c, seqs, n_seqs);
    s->store = check_alloc(c, (size_t)n_rows * sizeof(int32_t));
    s->parent = check_alloc(c, (size_t)n_rows * sizeof(int32_t));
    s->index = check_alloc(c, (size_t)n_rows * sizeof(int32_t));
    s->seq = check_alloc(c, (size_t)n_rows * sizeof(int32_t));
    s->path = check_alloc(c, (size_t)n_rows * MAX_DEPTH * sizeof(int32_t));
    for (int i = 0; i < n_seqs; i++) add_seq(s, c, i, &seqs[i]);
    s->n_seqs = s->batch.n_seqs = n_seqs;
    add_padding(s, n_padding);
    s->batch.seqs = s->seqs;
    s->batch.seq = s->seq;
    s->batch.index = s->index;
    s->batch.parent = s->parent;
    s->batch.path = s->path;
    s->batch.store[0] = s->store;
}

void scene_open_random(Scene *s, Check *c, int32_t max_committed, int32_t max_rows, int32_t block_size)
{
    SceneSeq seqs[5];
    int n = check_int(c, 1, COUNT(seqs)), n_uncertain = check_int(c, 0, n);
    for (int i = 0; i < n; i++) {
        int32_t committed = check_int(c, 0, 3) ? check_int(c, 0, max_committed) : 0;
        seqs[i] = (SceneSeq){ committed, check_int(c, 1, check_int(c, 1, max_rows)), i >= n_uncertain,
                              (TreeShape)check_int(c, 0, TREE_N_SHAPES - 1) };
    }
    scene_open(s, c, seqs, n, block_size, check_int(c, 0, 3));
}

/* ---- questions ---- */

int32_t scene_depth(const Scene *s, int32_t row)
{
    return s->index[row] - s->seqs[s->seq[row]].n_committed;
}

int32_t scene_path(const Scene *s, int32_t row, int32_t *rows)
{
    int32_t n = scene_depth(s, row) + 1;
    for (int32_t i = n - 1; i >= 0; i--, row = s->parent[row]) rows[i] = row;
    return n;
}

int32_t scene_store(const Scene *s, int32_t row, int32_t j)
{
    const BatchSeq *q = &s->seqs[s->seq[row]];
    if (j < q->n_committed) return entry_store(s, q->slot, j);
    while (s->index[row] > j) row = s->parent[row];
    return s->store[row];
}

int32_t scene_random_leaf(const Scene *s, Check *c, int32_t seq)
{
    return s->seqs[seq].first_row + check_int(c, 0, s->seqs[seq].n_rows - 1);
}
